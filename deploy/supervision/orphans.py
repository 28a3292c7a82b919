"""What the processes of a run have started, and what has become of it: nothing outlives the process that it belongs to.

Each process is started in a group of its own, which is killed with it (deploy/supervision/process.py), and with a
mark in its environment
that its children inherit: by that those are found which have left the group (Linux). The supervisor adopts orphans, so that
whoever dropped the mark as well is found at the end of the run at least, and `deploy.supervision.reaper` does all
this when the supervisor
is killed itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import subprocess
import sys
from collections.abc import Iterable

from deploy.supervision import reaper
from deploy.supervision.process import POSIX, child_environment, python_command

PR_SET_CHILD_SUBREAPER = 36
LAST_SWEEP_SECONDS = 2.0


class Strays:
    """The families of one supervisor's processes, and the process that ends them when the supervisor cannot."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._mark = secrets.token_hex(8)
        self._lives = 0
        self._groups: dict[int, str] = {}  # by process group: the mark of its leader
        self._strangers: set[int] | None = None  # children that were there before; None: this process adopts nobody
        self._reaper: subprocess.Popen[str] | None = None

    def mark(self) -> str:
        """What the next process is to have in its environment, as HEADRACE_LIFE."""
        self._lives += 1
        return f"{self._mark}:{self._lives}"

    def adopt(self) -> None:
        """From now on who loses his parent becomes a child of this process, and is reaped by `tend` (Linux)."""
        if sys.platform.startswith("linux"):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            self._strangers = children()

    def began(self, pid: int, mark: str) -> None:
        """A process has been started, the leader of a group, with that mark."""
        self._groups[pid] = mark
        self._tell(f"+{pid}")

    def members(self) -> dict[int, list[int]]:
        """All that now belong to each of the processes, by its number (elsewhere than on Linux it alone)."""
        found = reaper.families(f"{self._mark}:")
        return {pid: found.get(mark, [pid]) for pid, mark in self._groups.items()}

    def tend(self, alive: Iterable[int]) -> None:
        """Called at each turn: ends what those have left who are no longer `alive`, reaps, and sees that the reaper stands by."""
        if not POSIX:
            return
        gone = self._groups.keys() - set(alive)
        for pid in gone:
            del self._groups[pid]
            self._tell(f"-{pid}")
        if gone:
            reaper.kill_families(f"{self._mark}:", spared=self._groups.values())
        self._reap()
        if self._reaper is None or self._reaper.poll() is not None:
            self._start_reaper()

    def close(self) -> None:
        """Ends whoever is left: the marked, and orphans who are not. To be called when no process of the run is alive."""
        if not POSIX:
            return
        reaper.kill_families(f"{self._mark}:")
        if self._strangers is not None:
            reaper.kill(children() - self._strangers - self._own())
        self._end_pipe()
        if self._reaper is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._reaper.wait(LAST_SWEEP_SECONDS)
        self._reap()

    def _end_pipe(self) -> None:
        if self._reaper is not None and self._reaper.stdin is not None:
            with contextlib.suppress(OSError):  # there may be something that nobody read
                self._reaper.stdin.close()

    def _start_reaper(self) -> None:
        self._end_pipe()
        command = python_command("deploy.supervision.reaper", f"{self._mark}:")
        command.insert(1, "-S")  # it needs nothing that is installed
        with contextlib.suppress(OSError):  # no more processes: the next turn tries again
            self._reaper = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=child_environment(),
                start_new_session=True,
                text=True,
            )
            for pid in self._groups:
                self._tell(f"+{pid}")

    def _tell(self, line: str) -> None:
        if self._reaper is not None and self._reaper.stdin is not None:
            with contextlib.suppress(OSError):  # it has died: the next one is told of all
                self._reaper.stdin.write(line + "\n")
                self._reaper.stdin.flush()

    def _own(self) -> set[int]:
        return {*self._groups, *([self._reaper.pid] if self._reaper is not None else [])}

    def _reap(self) -> None:
        """Lets adopted processes go that have ended; those that we started are waited for where they were."""
        while self._strangers is not None:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or ended.si_pid in self._own() | self._strangers:
                return
            with contextlib.suppress(ChildProcessError):
                os.waitpid(ended.si_pid, os.WNOHANG)


def children() -> set[int]:
    """The children of this process, those that have ended included (Linux)."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])  # after the command's name, which may hold anything
            if parent == os.getpid():
                found.add(int(name))
    return found
