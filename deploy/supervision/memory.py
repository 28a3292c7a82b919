"""Whether the kernel killed a process for want of memory, and how much the processes of a family hold together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

OUT_OF_MEMORY = "out of memory"  # how the reason for such a death begins
LOOK_SECONDS = 1.0
RECENT_SECONDS = 10.0  # between the kernel's choice and the end of a large process that is to be seen
VMSTAT = Path("/proc/vmstat")
COUNTERS = {2: "memory.events", 1: "memory.oom_control"}  # of a group, by the version


class KernelsVerdict:
    """Watches the kernel's count of processes that it killed for want of memory, where one process is counted.

    That is the memory cgroup that the process is in, in version 2 or 1; where there is none, the whole machine.
    """

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins to watch."""
        self._pid, self._clock = pid, clock
        self._counts: dict[Path, int] = {}
        self._rose: float | None = None
        self._next_look = 0.0
        self.look()

    def look(self, at_once: bool = False) -> None:
        """Reads the count, if it is time or `at_once`; before the process is reaped, or it is in no group any more."""
        now = self._clock()
        if now < self._next_look and not at_once:
            return
        self._next_look = now + LOOK_SECONDS
        for path in {oom_counter(self._pid), *self._counts}:
            count = oom_kills(path)
            if count is not None:
                if count > self._counts.get(path, count):
                    self._rose = now
                self._counts[path] = count

    @property
    def guilty(self) -> bool:
        """Whether the count rose a moment ago."""
        return self._rose is not None and self._clock() - self._rose < RECENT_SECONDS


def oom_counter(pid: int) -> Path:
    """The file that counts processes killed for want of memory where this one is: of its memory cgroup, or /proc/vmstat."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return VMSTAT
    for line in lines:  # 4:cpu,memory:/group, or 0::/group in version 2
        _, controllers, group = line.split(":", 2)
        for version, root, where in _mounts():
            below = os.path.relpath(group, root)
            fits = "memory" in controllers.split(",") if version == 1 else not controllers
            if fits and not below.startswith(".."):
                counter = Path(where, below, COUNTERS[version])
                if oom_kills(counter) is not None:
                    return counter
    return VMSTAT


@cache
def _mounts() -> tuple[tuple[int, str, str], ...]:
    """Where groups with memory are to be seen: (version, the group that is at the top there, folder) each."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ()
    found = []
    for line in lines:  # 36 35 0:30 /group /folder rw,… - cgroup source rw,memory
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            root, where = before.split()[3:5]
            found.append((2 if kind == "cgroup2" else 1, root, where))
    return tuple(found)


def oom_kills(counter: Path) -> int | None:
    """What a file counts in its line oom_kill; None where it has none."""
    try:
        for line in counter.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory that processes hold, what they share counted once for each; those that have gone hold none."""
    total = 0
    for pid in pids:
        with suppress(psutil.Error):
            total += psutil.Process(pid).memory_info().rss
    return total
