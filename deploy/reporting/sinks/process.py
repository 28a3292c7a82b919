"""A sink in a separate process: `python -m deploy.reporting.sinks.process RUN_DIR`, started by ProcessSink.

The process reads lines of JSON from its standard input: first which sink it is to make, then points. The end of the input is the
end of the run. What it prints goes to the run's log.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from deploy.children import APART, POSIX, THREAD_VARIABLES, UTF8, child_environment, python_command
from deploy.reporting.base import NoSinkOptions, Point
from transport.lifetime import PARENT_VARIABLE, die_with_parent
from transport.names import find
from transport.system import lower_priority

LINE_BYTES = 64 * 1024  # a longer line is cut
LAST_WORDS_SECONDS = 0.5


class ProcessEnded(Exception):
    """A sink's process has ended before its run; the text is the last line that it printed."""


class ProcessSink:
    """Starts the process and passes points to it. A point waits while the process is busy; `kill` ends that, too."""

    def __init__(self, reference: str, config: Struct, run: Path, label: str, on_line: Callable[[str, str], None]) -> None:
        """Starts it. On Linux it ends with the thread that calls this. `on_line(label, line)` is called from another thread with
        what it prints. Raises OSError."""
        self._popen = subprocess.Popen(
            python_command("deploy.reporting.sinks.process", str(run)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=child_environment(**UTF8, **{PARENT_VARIABLE: str(os.getpid())}, **dict.fromkeys(THREAD_VARIABLES, "1")),
            start_new_session=POSIX,  # Ctrl-C reaches only the supervisor
            creationflags=APART,
        )
        self._label, self._on_line, self._last_line = label, on_line, ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._first = json.dumps({"sink": reference, "options": msgspec.to_builtins(config)})

    def write(self, record: Point) -> None:
        """Raises ProcessEnded."""
        self._tell(json.dumps(record._asdict()))  # NaN stays NaN, which msgspec would write as null

    def check(self) -> None:
        """Raises ProcessEnded where the process has ended."""
        if self._popen.poll() is not None:
            raise self._ended()

    def close(self) -> None:
        """Waits for the sink to close. Raises ProcessEnded where it has failed."""
        self._tell("")
        with contextlib.suppress(OSError):
            self._stdin.close()
        if self._popen.wait():
            raise self._ended()
        self._reader.join(LAST_WORDS_SECONDS)

    def kill(self) -> None:
        """Ends it and what it has started, whatever it is doing."""
        if self._popen.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._popen.pid, signal.SIGKILL) if POSIX else self._popen.kill()
        self._popen.wait()
        self._reader.join(LAST_WORDS_SECONDS)
        with contextlib.suppress(OSError):
            self._stdin.close()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._popen.stdin is not None
        return self._popen.stdin

    def _tell(self, line: str) -> None:
        try:
            for text in filter(None, (self._first, line)):
                self._stdin.write(text.encode() + b"\n")
            self._stdin.flush()
        except (OSError, ValueError):  # ValueError: closed
            raise self._ended() from None
        self._first = ""

    def _ended(self) -> ProcessEnded:
        self._reader.join(LAST_WORDS_SECONDS)
        return ProcessEnded(self._last_line or "its process was killed")

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as stream:
            while raw := stream.readline(LINE_BYTES):
                if line := raw.decode("utf-8", "replace").rstrip():
                    self._last_line = line
                    self._on_line(self._label, line)


def own_input() -> IO[str]:
    """The standard input under another number: a user's code that reads the standard input finds it empty."""
    lines = os.fdopen(os.dup(0), encoding="utf-8")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return lines


def main() -> int:
    """Makes the sink and writes each point to it."""
    die_with_parent()
    lower_priority()
    try:
        with own_input() as lines:
            order = json.loads(lines.readline())
            found = find(order["sink"], {}, "sink")
            sink = found(Path(sys.argv[1]), msgspec.convert(order["options"], getattr(found, "Config", NoSinkOptions)))
            while line := lines.readline():
                sink.write(Point(**json.loads(line)))
            sink.close()
    except BaseException as error:  # also SystemExit from a library
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
