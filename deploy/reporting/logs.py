"""Many processes, one log: whole lines to the terminal and to files, each with the name of who said it."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, TextIO

from transport.run_dir import RunDir, set_aside

MERGED = "run"  # logs/run.log: what the terminal shows, with the time
NAME_WIDTH = 8
PENDING_LINES = 10_000
Verbosity = Literal["all", "events"]
EVENTS = ("supervisor", "evaluator", "bottleneck")  # what a quiet terminal shows
SHOWN = {"evaluator": "eval"}  # what the merged log calls a process whose name is wider than that
COLOURS = {"supervisor": 37, "replay": 35, "learner": 33, "eval": 34, "bottleneck": 31}
ACTOR_COLOURS = (36, 32, 96, 92)
LINE = re.compile(r"^(?P<time>\S+ \S+ )(?P<name>[a-z]+(?:-\d+)?)(?P<rest> +\| |: )")


def colours_wanted(stream: TextIO) -> bool:
    """Whether a person looks at this stream."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def paint(name: str, text: str) -> str:
    """The text in the colour of a process."""
    role, _, number = name.partition("-")
    colour = ACTOR_COLOURS[int(number) % len(ACTOR_COLOURS)] if role == "actor" and number.isdigit() else COLOURS.get(role, 37)
    return f"\x1b[{colour}m{text}\x1b[0m"


class Terminal:
    """Writes lines from a thread of its own: a paused or closed terminal must never stop a run. Oldest lines are dropped."""

    def __init__(self, stream: TextIO) -> None:
        """Starts the thread."""
        self._stream = stream
        self.coloured = colours_wanted(stream)
        self._lines: deque[str] = deque(maxlen=PENDING_LINES)
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def line(self, text: str) -> None:
        """Queues one line."""
        self._lines.append(text)
        self._wake.set()

    def _write(self) -> None:
        try:
            while not (self._closing and not self._lines):
                self._wake.wait(1.0)
                self._wake.clear()
                while self._lines:
                    self._put(self._lines.popleft() + "\n")
        except (OSError, ValueError):  # nobody reads any more: the files still tell all
            self._lines = deque(maxlen=0)

    def _put(self, text: str) -> None:
        if os.name != "posix" or not hasattr(self._stream, "buffer"):
            self._stream.write(text)
            self._stream.flush()
            return
        # Past the stream's own lock, which a write that never returns would hold until the interpreter ends.
        data = text.encode(self._stream.encoding, "replace")
        while data:
            data = data[os.write(self._stream.fileno(), data) :]

    def close(self) -> None:
        """Writes what is left, unless nobody takes it within a second."""
        self._closing = True
        self._wake.set()
        self._thread.join(1.0)


class LogFile:
    """Appends lines; set aside as NAME.log.1 when it has grown to the limit. A full disk costs lines, not the run."""

    def __init__(self, path: Path, limit_bytes: int, kept: int) -> None:
        """Opens on the first line. At most `kept` files set aside stay."""
        self._path = path
        self._kept = kept
        self._limit_bytes = limit_bytes
        self._file: TextIO | None = None

    def line(self, text: str) -> None:
        """Writes one line."""
        try:
            if self._file is None:
                self._file = self._path.open("a", encoding="utf-8", buffering=1)
            self._file.write(text + "\n")
            if self._file.tell() >= self._limit_bytes:
                self.close()
                set_aside(self._path, self._kept)
        except OSError:
            self._file = None

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None


class Log:
    """The merged log of a run and the log of each process. Any thread may write."""

    def __init__(
        self, run_dir: RunDir, limit_bytes: int, kept: int, terminal: Terminal | None, verbosity: Verbosity = "all"
    ) -> None:
        """Without a terminal only the files are written, and they are given everything."""
        self._run_dir = run_dir
        self._limit_bytes, self._kept = limit_bytes, kept
        self._terminal = terminal
        self._quiet = verbosity == "events"
        self._files: dict[str, LogFile] = {}
        self._lock = threading.Lock()

    def line(self, name: str, text: str) -> None:
        """One line that `name` said."""
        self._write(name, f"{SHOWN.get(name, name):<{NAME_WIDTH}} | ", text)

    def verdict(self, text: str) -> None:
        """What limits the run: a line of the whole, not of one process."""
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
        """Closes the files and lets the terminal finish."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()
        if self._terminal is not None:
            self._terminal.close()


def show(path: Path, last_lines: int, follow: bool, over: Callable[[], bool]) -> None:
    """Prints the end of a log, and with `follow` what is added, until `over()` or a broken pipe."""
    coloured = colours_wanted(sys.stdout)
    try:
        for line in _tail(path, last_lines, follow, over):
            match = LINE.match(line) if coloured else None
            if match:
                head = match["time"] + paint(match["name"], match["name"] + match["rest"])
                line = head + line[match.end() :]
            print(line, flush=follow)
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the interpreter flushes it once more at its end


def _tail(path: Path, last_lines: int, follow: bool, over: Callable[[], bool]) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from (line.rstrip("\n") for line in deque(file, last_lines))
        position, number = file.tell(), os.fstat(file.fileno()).st_ino
    rest = ""
    while follow:
        ended = over()  # asked first: what is written before the end is still shown
        try:
            if path.stat().st_ino != number:  # set aside; a new file has begun
                position, number = 0, path.stat().st_ino
            with path.open(encoding="utf-8", errors="replace", newline="") as file:
                file.seek(position)
                *lines, rest = (rest + file.read()).split("\n")
                position = file.tell()
            yield from lines
        except OSError:
            pass
        if ended:
            return
        time.sleep(0.2)
