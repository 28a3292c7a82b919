"""A child process on this machine: its start, its lines, its end."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable

from actors.envs.preflight.job import JobObject
from deploy.children import APART, POSIX, UTF8
from deploy.places.base import Exit, Usage
from deploy.places.memory import Gauge, OutOfMemoryWatch
from transport.lifetime import INCARNATION_VARIABLE, new_incarnation
from transport.system import lower_child, lower_group
from transport.text import plain

READ_BYTES = 64 * 1024
LOG_LINE_BYTES = 64 * 1024  # longer lines are cut, so that a child that never ends one cannot fill the memory
LAST_WORDS_SECONDS = 0.5
BELOW_NORMAL = 0 if POSIX else subprocess.BELOW_NORMAL_PRIORITY_CLASS  # type: ignore[attr-defined]


class Child:
    """A process in a session of its own, so that Ctrl-C reaches only the supervisor. Start it from the main thread."""

    def __init__(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str],
        on_line: Callable[[str, str], None],
        processes: int = 1,
        asked: bool = False,
        incarnation: int = 0,
        longest_line_bytes: int = LOG_LINE_BYTES,
        yields: bool = False,
    ) -> None:
        """Starts it. `on_line(name, line)` is called from a reader thread, with whole lines only; one of more than
        `longest_line_bytes`, which may be changed later, is cut. `processes` is how many it starts to do its work; one that is
        `asked` reads what `tell` writes. Its reports carry `incarnation`, a new one if that is 0. One that `yields` has a lower
        priority than other programs. Raises OSError."""
        self.longest_line_bytes = longest_line_bytes
        self.incarnation = incarnation or new_incarnation()
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if asked else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # one pipe: the order of the lines is kept
            env=environment | UTF8 | {INCARNATION_VARIABLE: str(self.incarnation)},
            start_new_session=POSIX,
            creationflags=APART | (BELOW_NORMAL if yields else 0),
        )
        self.pid = self._popen.pid
        self._group_waits = yields and POSIX  # for its priority
        if yields:
            lower_child(self.pid)
        self._job = JobObject(self.pid)
        self.fault, self.host, self.away, self.adopted = "", "", False, False
        self._name = name
        self._on_line = on_line
        self._last_line = ""
        self._killed = False
        self._out_of_memory = OutOfMemoryWatch(self.pid)
        self._gauge = Gauge(self.pid, with_children=processes > 1)
        self._reader = threading.Thread(target=self._read, daemon=True)
        try:
            self._reader.start()
        except RuntimeError as error:  # the account has no threads left: it may have some at the next try
            self._popen.kill()
            self._popen.communicate()
            raise OSError(errno.EAGAIN, str(error)) from error

    def poll(self) -> Exit | None:
        """How it ended, or None while it runs. Ends what it had started, too."""
        self._group_waits = self._group_waits and not lower_group(self.pid)
        if self._popen.returncode is None and hasattr(os, "waitid"):
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            self._out_of_memory.look(at_once=ended is not None)
            if ended is None:
                return None
            self._signal(os.killpg, signal.SIGKILL)  # it is not reaped yet, so the number is still its own
        code = self._popen.poll()
        if code is None:
            return None
        self._job.close()
        self._reader.join(LAST_WORDS_SECONDS)
        by_kernel = POSIX and code == -signal.SIGKILL and not self._killed and self._out_of_memory.lately
        own, last = f"{self._name}: ", plain(self._last_line)
        return Exit(code, last[-300:].removeprefix(own), by_kernel, last.startswith(own))

    def ask(self) -> None:
        """Sends SIGTERM. On Windows only the supervisor's Stop message asks it to end."""
        if POSIX:
            self._signal(os.kill, signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and all that it has started, also when it is stopped or ignores other signals."""
        self._killed = True
        if POSIX:
            self._signal(os.killpg, signal.SIGKILL)
        else:
            self._popen.kill()
            self._job.close()

    def end(self) -> None:
        """Kills it and waits for its end."""
        self.kill()
        self._popen.wait()
        self._reader.join(LAST_WORDS_SECONDS)
        self.hang_up()

    def tell(self, line: str, last: bool = False) -> None:
        """Writes a line to its standard input, which ends with the `last` one."""
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):  # it has ended
            self._popen.stdin.write(line.encode() + b"\n")
            self._popen.stdin.flush()
        if last:
            self.hang_up()

    def hang_up(self) -> None:
        """Ends its standard input, if it has one."""
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()

    def usage(self) -> Usage:
        return self._gauge.read()

    def _signal(self, send: Callable[[int, int], None], number: int) -> None:
        if self._popen.returncode is None:
            try:
                send(self.pid, number)
            except (ProcessLookupError, PermissionError):  # macOS raises the latter for a group of zombies
                pass

    def _read(self) -> None:
        assert self._popen.stdout is not None
        rest = b""
        with self._popen.stdout as stream:
            while piece := os.read(stream.fileno(), READ_BYTES):
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > self.longest_line_bytes:
                    lines, rest = [*lines, rest], b""
                self._deliver(lines)
            self._deliver([rest] if rest else [])

    def _deliver(self, lines: list[bytes]) -> None:
        for raw in lines:
            line = raw.decode("utf-8", "replace").rstrip()
            if line:
                self._last_line = line
            self._on_line(self._name, line)
