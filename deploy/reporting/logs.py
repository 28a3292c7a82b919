"""The log of a run: whole lines of all processes, each with the name of its process, on the terminal and in files."""

from __future__ import annotations

import logging
import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, TextIO

from deploy.reporting.new_lines import NewLines
from transport.files.documents import open_file
from transport.files.writing import open_to_append
from transport.run_dir import RunDir
from transport.text import plain

MERGED = "run"  # logs/run.log: what the terminal shows, with the time
NAME_WIDTH = 8
PENDING_BYTES = 4_000_000  # for a terminal that is paused
LINES_PER_SECOND, BYTES_PER_SECOND = 100, 100_000  # of one process, in the long run
BURST_SECONDS = 20.0  # so much of them at once, such as a traceback
Verbosity = Literal["all", "events"]
EVENTS = ("supervisor", "evaluator", "bottleneck")  # shown with --deploy.verbosity events
SHOWN = {"evaluator": "eval"}  # short names of processes whose name is too wide
COLOURS = {"supervisor": 37, "replay": 35, "learner": 33, "eval": 34, "bottleneck": 31}
ACTOR_COLOURS = (36, 32, 96, 92)
LINE = re.compile(r"^(?P<time>\S+ \S+ )(?P<name>[a-z]+(?:-\d+)?)(?P<rest> +\| |: )")


def colours_wanted(stream: TextIO) -> bool:
    """True for a terminal that shows colours."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(name: str, text: str) -> str:
    """The text in the colour of a process."""
    role, _, number = name.partition("-")
    colour = ACTOR_COLOURS[int(number) % len(ACTOR_COLOURS)] if role == "actor" and number.isdigit() else COLOURS.get(role, 37)
    return f"\x1b[{colour}m{text}\x1b[0m"


class Screen(Protocol):
    """Shows the lines of a log."""

    coloured: bool

    def line(self, text: str) -> None: ...

    def close(self) -> None: ...


class Terminal:
    """Writes lines in a thread of its own, so that a paused or closed terminal never stops a run. Drops the oldest lines beyond
    PENDING_BYTES."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.coloured = colours_wanted(stream)
        self._lines: deque[str] = deque()
        self._pending = 0  # their size, about in bytes
        self._lock = threading.Lock()
        self._closed = False  # its reader has ended
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def line(self, text: str) -> None:
        """Queues one line."""
        with self._lock:
            if self._closed:
                return
            self._lines.append(text)
            self._pending += len(text)
            while self._pending > PENDING_BYTES and len(self._lines) > 1:
                self._pending -= len(self._lines.popleft())
        self._wake.set()

    def _write(self) -> None:
        try:
            while not (self._closing and not self._lines):
                self._wake.wait(1.0)
                self._wake.clear()
                while (text := self._next()) is not None:
                    self._put(text + "\n")
        except (OSError, ValueError):  # the terminal is closed: the files still have every line
            with self._lock:
                self._closed = True
                self._lines.clear()

    def _next(self) -> str | None:
        with self._lock:
            if not self._lines:
                return None
            text = self._lines.popleft()
            self._pending -= len(text)
            return text

    def _put(self, text: str) -> None:
        if os.name != "posix" or not hasattr(self._stream, "buffer"):
            self._stream.write(text)
            self._stream.flush()
            return
        # Not through the stream: a write that never returns would hold its lock until the interpreter ends.
        data, number = text.encode(self._stream.encoding, "replace"), self._stream.fileno()
        while data:
            try:
                data = data[os.write(number, data) :]
            except BlockingIOError:  # another program, which has the same terminal or pipe, has made it non-blocking
                select.select([], [number], [])

    def close(self) -> None:
        """Writes the remaining lines, for a second at most."""
        self._closing = True
        self._wake.set()
        self._thread.join(1.0)


class LogFile(RotatingFileHandler):
    """A log of whole lines, rotated to NAME.log.1, NAME.log.2, … On a full disk lines are lost, the run goes on."""

    def __init__(self, path: Path, limit_bytes: int, kept: int) -> None:
        """The file is opened by the first line, rotated before it would reach `limit_bytes`; at most `kept` old ones stay."""
        self._path = path
        super().__init__(path, maxBytes=limit_bytes, backupCount=kept, encoding="utf-8", delay=True)

    def _open(self) -> TextIOWrapper:
        return TextIOWrapper(open_to_append(self._path), "utf-8")

    def line(self, text: str) -> None:
        """Makes the file, and its folder, again if someone has deleted them."""
        if not os.path.exists(self._path):  # which raises nothing where it cannot be looked at
            self.close()
            with suppress(OSError):
                self._path.parent.mkdir(exist_ok=True)
        self.handle(logging.makeLogRecord({"msg": text}))

    def doRollover(self) -> None:  # noqa: N802 - the name is logging's
        """On Windows a file that another program has open cannot be renamed: then lines are appended until it can be."""
        try:
            super().doRollover()
        except PermissionError:
            self.stream = self._open()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        """The next line opens the file again."""
        with suppress(OSError):
            self.close()


class LineAllowance:
    """A token bucket for the lines of a process. It holds the tokens of BURST_SECONDS."""

    def __init__(self) -> None:
        self.left_out = 0  # lines since the last that was shown
        self._lines, self._bytes = LINES_PER_SECOND * BURST_SECONDS, BYTES_PER_SECOND * BURST_SECONDS
        self._at = time.monotonic()

    def take(self, size: int) -> bool:
        """Takes the tokens for a line of `size` bytes; False if there are too few."""
        now = time.monotonic()
        passed, self._at = now - self._at, now
        self._lines = min(self._lines + passed * LINES_PER_SECOND, LINES_PER_SECOND * BURST_SECONDS)
        self._bytes = min(self._bytes + passed * BYTES_PER_SECOND, BYTES_PER_SECOND * BURST_SECONDS)
        if self._lines < 1 or self._bytes < size:
            self.left_out += 1
            return False
        self._lines, self._bytes = self._lines - 1, self._bytes - size
        return True


class Log:
    """The merged log of a run and the log of each process. Any thread may write.

    Lines are made plain, and a process that prints too much has its lines left out and counted: a simulator may print anything.
    """

    def __init__(
        self, run_dir: RunDir, limit_bytes: int, kept: int, terminal: Screen | None, verbosity: Verbosity = "all"
    ) -> None:
        """Without a terminal only the files are written. They get every line, whatever the verbosity."""
        self._run_dir = run_dir
        self._limit_bytes, self._kept = limit_bytes, kept
        self._terminal = terminal
        self._quiet = verbosity == "events"
        self._files: dict[str, LogFile] = {}
        self._allowances: dict[str, LineAllowance] = {}
        self._lock = threading.Lock()

    def line(self, name: str, text: str) -> None:
        """A line of the process `name`."""
        with self._lock:
            allowance = self._allowances.setdefault(name, LineAllowance())
            if name != "supervisor" and not allowance.take(len(text)):
                return
            left_out, allowance.left_out = allowance.left_out, 0
        self._report_left_out(name, left_out)
        self._write(name, _head(name), plain(text))

    def _report_left_out(self, name: str, lines: int) -> None:
        if lines:
            self._write(name, _head(name), f"… {lines:,} lines left out, because it prints too much")

    def bottleneck(self, text: str) -> None:
        """The line about what limits the run, which is no process's own."""
        self._write("bottleneck", "bottleneck: ", text)

    def _write(self, name: str, head: str, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S ")
        with self._lock:
            self._file(MERGED).line(stamp + head + text)
            if name != "bottleneck":
                self._file(name).line(stamp + text)
            if self._terminal is not None and not (self._quiet and name not in EVENTS):
                self._terminal.line((paint(SHOWN.get(name, name), head) if self._terminal.coloured else head) + text)

    def _file(self, name: str) -> LogFile:
        if name not in self._files:
            self._files[name] = LogFile(self._run_dir.log(name), self._limit_bytes, self._kept)
        return self._files[name]

    def close(self) -> None:
        """Closes the files, and the terminal once it has written its lines."""
        for name, allowance in self._allowances.items():
            self._report_left_out(name, allowance.left_out)
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()
        if self._terminal is not None:
            self._terminal.close()


def _head(name: str) -> str:
    return f"{SHOWN.get(name, name):<{NAME_WIDTH}} | "


def show(path: Path, last_lines: int, follow: bool, over: Callable[[], bool]) -> None:
    """Prints the last lines of a log, and with `follow` new ones, until `over()` is true or the pipe is broken."""
    coloured = colours_wanted(sys.stdout)
    try:
        for line in map(plain, _tail(path, last_lines, follow, over)):
            match = LINE.match(line) if coloured else None
            if match:
                head = match["time"] + paint(match["name"], match["name"] + match["rest"])
                line = head + line[match.end() :]
            print(line, flush=follow)
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the interpreter flushes it at its end


def _tail(path: Path, last_lines: int, follow: bool, over: Callable[[], bool]) -> Iterator[str]:
    new = NewLines(path, last_bytes=0 if path.stat().st_size else None)
    for _ in new.blocks():  # it begins at the end of the file
        pass
    with open_file(path) as file:
        yield from _decoded(deque(_lines_before(file, new.position) if follow else file, last_lines))
    while follow:
        ended = over()  # called first, so that the last lines are still shown
        for lines in new.blocks():
            yield from _decoded(lines)
        if ended:
            return
        time.sleep(0.2)


def _lines_before(file: BinaryIO, end: int) -> Iterator[bytes]:
    for line in file:
        if (end := end - len(line)) < 0:
            return
        yield line


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    return (line.rstrip(b"\n").decode(errors="replace") for line in lines)
