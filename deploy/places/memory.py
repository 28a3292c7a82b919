"""Memory use of processes, and a watch for kills by the kernel for lack of memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from deploy.places.base import Usage
from transport.cgroups import groups

LOOK_SECONDS = 1.0
RECENT_SECONDS = 10.0  # between the kernel's kill and the end of a large process
VMSTAT = Path("/proc/vmstat")
COUNTERS = {2: "memory.events", 1: "memory.oom_control"}  # of a cgroup, by its version


class OutOfMemoryWatch:
    """Watches the kernel's count of processes that it killed for lack of memory.

    The count is that of the process's memory cgroup, version 2 or 1; without a cgroup, that of the whole machine.
    """

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid, self._clock = pid, clock
        self._counts: dict[Path, int] = {}
        self._rose: float | None = None
        self._next_look = 0.0
        self.look()

    def look(self, at_once: bool = False) -> None:
        """Reads the count, if it is time or `at_once`. Call it before the process is reaped: then it has no cgroup any more."""
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
    def lately(self) -> bool:
        """True if the count rose a moment ago."""
        return self._rose is not None and self._clock() - self._rose < RECENT_SECONDS


def oom_counter(pid: int) -> Path:
    """The file with the count: that of the process's memory cgroup, or /proc/vmstat."""
    counters = (group.folder / COUNTERS[group.version] for group in groups("memory", pid))
    return next((counter for counter in counters if oom_kills(counter) is not None), VMSTAT)


def oom_kills(counter: Path) -> int | None:
    """The number in the line oom_kill of a file; None without such a line."""
    try:
        for line in counter.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory of processes; shared memory counts for each of them. Processes that have ended count 0."""
    total = 0
    for pid in pids:
        with suppress(psutil.Error):
            total += psutil.Process(pid).memory_info().rss
    return total


class Gauge:
    """Memory and processor use of one process."""

    def __init__(self, pid: int, with_children: bool = False) -> None:
        """`with_children`: processes that it has started count as well."""
        self._pid, self._with_children = pid, with_children
        self._known: dict[int, psutil.Process] = {}  # psutil measures processor time since the call before

    def read(self) -> Usage:
        """Resident bytes, and percent of one core since the last call."""
        try:
            process = self._known.get(self._pid) or psutil.Process(self._pid)
            children = process.children() if self._with_children else []
            self._known = {each.pid: self._known.get(each.pid, each) for each in (process, *children)}
            read = self._known.values()
            return Usage(sum(each.memory_info().rss for each in read), sum(each.cpu_percent() for each in read))
        except psutil.Error:
            return Usage()
