"""One child process on this machine: started, read line by line, asked to end, killed, and how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable

from deploy.children import POSIX
from deploy.places.base import Exit, Usage
from deploy.places.memory import Gauge, OutOfMemoryWatch

MAX_LINE_BYTES = 64 * 1024  # a longer line is cut, so that a child that never ends one cannot fill the memory
LAST_WORDS_SECONDS = 0.5


class Child:
    """A process in a session of its own, so that Ctrl-C reaches only the supervisor. Start it from the main thread."""

    def __init__(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str],
        on_line: Callable[[str, str], None],
        processes: int = 1,
    ) -> None:
        """Starts it. `on_line(name, line)` is called from a reader thread, with whole lines only. `processes` is how many it
        starts to do its work. Raises OSError."""
        flags = 0 if POSIX else subprocess.CREATE_NEW_PROCESS_GROUP  # type: ignore[attr-defined]
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # one pipe: the order of the lines is kept
            env=environment,
            start_new_session=POSIX,
            creationflags=flags,
        )
        self.pid = self._popen.pid
        self.fault = ""
        self._name = name
        self._on_line = on_line
        self._last_words = ""
        self._killed = False
        self._out_of_memory = OutOfMemoryWatch(self.pid)
        self._gauge = Gauge(self.pid, with_children=processes > 1)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def poll(self) -> Exit | None:
        """How it ended, or None while it runs. What it had started is ended with it."""
        if self._popen.returncode is None and hasattr(os, "waitid"):
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            self._out_of_memory.look(at_once=ended is not None)
            if ended is None:
                return None
            self._signal(os.killpg, signal.SIGKILL)  # not reaped yet: its number cannot be another's
        code = self._popen.poll()
        if code is None:
            return None
        self._reader.join(LAST_WORDS_SECONDS)
        by_kernel = POSIX and code == -signal.SIGKILL and not self._killed and self._out_of_memory.lately
        return Exit(code, self._last_words, by_kernel)

    def ask(self) -> None:
        """Asks it to end. Where there is no SIGTERM, the Stop message alone does that."""
        if POSIX:
            self._signal(os.kill, signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and all that it has started, also when it is stopped or ignores signals."""
        self._killed = True
        if POSIX:
            self._signal(os.killpg, signal.SIGKILL)
        else:
            self._popen.kill()

    def usage(self) -> Usage:
        return self._gauge.read()

    def _signal(self, send: Callable[[int, int], None], number: int) -> None:
        if self._popen.returncode is None:
            try:
                send(self.pid, number)
            except (ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
                pass

    def _read(self) -> None:
        assert self._popen.stdout is not None
        rest = b""
        with self._popen.stdout as stream:
            while piece := os.read(stream.fileno(), MAX_LINE_BYTES):
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    lines, rest = [*lines, rest], b""
                self._deliver(lines)
            self._deliver([rest] if rest else [])

    def _deliver(self, lines: list[bytes]) -> None:
        for raw in lines:
            line = raw.decode("utf-8", "replace").rstrip()
            if line:
                self._last_words = line[-300:].removeprefix(f"{self._name}: ")
            self._on_line(self._name, line)
