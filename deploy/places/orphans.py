"""Finds and ends what processes of a run have started, so that nothing outlives the process that started it.

Each process leads a process group, which is killed with it (deploy/places/child.py), and has a mark in its environment, which
its children inherit. By the mark children are found that have left the group (Linux). The supervisor adopts orphans: so a child
without the mark is found at the end of the run. `deploy.places.reaper` does the same when the supervisor itself is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from deploy.children import POSIX, child_environment, python_command
from deploy.places import reaper

PR_SET_CHILD_SUBREAPER = 36
LAST_SWEEP_SECONDS = 2.0


class Orphans:
    """All that the processes of one supervisor have started, and the reaper that ends them when the supervisor is killed."""

    def __init__(self, run_mark: str = "", used: int = 0, folders: Sequence[Path] = ()) -> None:
        """`run_mark`: the mark of processes of the run that were started before, with the numbers 0 to `used`; without one a new
        mark is made. `folders` are removed when this process has ended, however it ended."""
        self._mark, self._folders = run_mark or secrets.token_hex(8), folders
        self._incarnations = used
        self._groups: dict[int, str] = {}  # by process group: the mark of its leader
        self._others: set[int] | None = None  # children from before `adopt`; None: orphans are not adopted
        self._reaper: subprocess.Popen[str] | None = None

    def adopt(self) -> None:
        """From now on orphans of this process's descendants become its children, and `tend` reaps them (Linux)."""
        if sys.platform.startswith("linux"):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            self._others = children()

    def mark(self) -> str:
        """The value of HEADRACE_MARK in the environment of the next process."""
        self._incarnations += 1
        return f"{self._mark}:{self._incarnations}"

    def began(self, pid: int, mark: str) -> None:
        """A process was started with that mark. It leads a process group."""
        self._groups[pid] = mark
        self._send(f"+{pid}")

    def members(self) -> dict[int, list[int]]:
        """The pids that belong to each process, by its own pid; on other systems than Linux that pid alone."""
        found = reaper.families(f"{self._mark}:")
        return {pid: found.get(mark, [pid]) for pid, mark in self._groups.items()}

    def tend(self, alive: Iterable[int]) -> None:
        """Called at each turn with the pids that are `alive`: ends what the others have left, reaps, keeps a reaper running."""
        if not POSIX:
            return
        gone = self._groups.keys() - set(alive)
        for pid in gone:
            del self._groups[pid]
            self._send(f"-{pid}")
            if not hasattr(os, "waitid"):  # macOS before Python 3.13: its group was not killed before it was reaped
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
        if gone:
            reaper.kill_families(f"{self._mark}:", spared=self._groups.values())
        self._reap()
        if self._reaper is None or self._reaper.poll() is not None:
            self._start_reaper()

    def close(self) -> None:
        """Ends what is left, with or without a mark. Called when no process of the run is alive."""
        if not POSIX:
            return
        reaper.kill_families(f"{self._mark}:")
        if self._others is not None:
            reaper.kill(children() - self._others - self._own())
        self._end_pipe()
        if self._reaper is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._reaper.wait(LAST_SWEEP_SECONDS)
        self._reap()

    def _end_pipe(self) -> None:
        if self._reaper is not None and self._reaper.stdin is not None:
            with contextlib.suppress(OSError):  # it may have died before it had read all
                self._reaper.stdin.close()

    def _start_reaper(self) -> None:
        self._end_pipe()
        command = python_command("deploy.places.reaper", f"{self._mark}:", *map(str, self._folders))
        command.insert(1, "-S")  # it needs nothing that is installed
        with contextlib.suppress(OSError):  # no process can be started: the next turn tries again
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
                self._send(f"+{pid}")

    def _send(self, line: str) -> None:
        if self._reaper is not None and self._reaper.stdin is not None:
            with contextlib.suppress(OSError):  # it has died: the next one gets all groups
                self._reaper.stdin.write(line + "\n")
                self._reaper.stdin.flush()

    def _own(self) -> set[int]:
        return {*self._groups, *([self._reaper.pid] if self._reaper is not None else [])}

    def _reap(self) -> None:
        """Reaps adopted processes that have ended. Children of this process are reaped where they were started."""
        while self._others is not None:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or ended.si_pid in self._own():
                return
            waiting = ended.si_pid in self._others  # to be reaped elsewhere, perhaps late; it hides those that came after it
            for pid in children() - self._others - self._own() if waiting else (ended.si_pid,):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if waiting:
                return


def children() -> set[int]:
    """The children of this process, with those that have ended and are not reaped yet (Linux)."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])  # after the command's name, which may contain any byte
            if parent == os.getpid():
                found.add(int(name))
    return found
