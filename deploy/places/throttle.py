"""Holds the processes of a run to a number of cores: they are stopped and continued many times a second.

All that the supervisor and its descendants have used counts, also what has ended since: its parent has its time. So the average
over the run is right, though each look comes late. Processes rest between two looks only where they have used more than is due.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress

import psutil

from transport.system import core_count

LOOK_SECONDS = 0.05  # of work, between two looks
LEAST_REST_SECONDS, LONGEST_REST_SECONDS = 0.005, 1.0
SAVED_SECONDS = 0.2  # for which a run that has used less may catch up
FAMILY_SECONDS = 2.0  # between two looks at which processes there are


class CoreBudget:
    """How long processes must rest so that they use `cores` cores on average. Times are those of one clock."""

    def __init__(self, cores: float, now: float, used_seconds: float) -> None:
        self._cores, self._now, self._used_seconds = cores, now, used_seconds
        self._credit_seconds = 0.0  # of one core; less than 0: more was used than is due

    def rest_seconds(self, now: float, used_seconds: float) -> float:
        """`used_seconds`: processor time that was used by now."""
        due = (now - self._now) * self._cores
        credit = self._credit_seconds + due - (used_seconds - self._used_seconds)
        self._credit_seconds = min(credit, SAVED_SECONDS * self._cores)
        self._now, self._used_seconds = now, used_seconds
        return max(-self._credit_seconds / self._cores, 0.0)


class Family:
    """This process, all its descendants, and those among them that are at work for the run."""

    def __init__(self) -> None:
        self._root = psutil.Process()
        self.all: list[psutil.Process] = [self._root]
        self.working: list[psutil.Process] = []

    def look(self, pids: Collection[int]) -> None:
        """`pids`: the processes of the run that this one has started. Their descendants work for it, too."""
        found, at_work = list[psutil.Process](), set(pids)
        with suppress(psutil.Error, OSError):
            found = self._root.children(recursive=True)  # a parent comes before its children
        for process in found:
            with suppress(psutil.Error, OSError):
                if process.ppid() in at_work:
                    at_work.add(process.pid)
        self.all, self.working = [self._root, *found], [process for process in found if process.pid in at_work]

    def used_seconds(self) -> float:
        """The processor time of all, and of those that they had started and that have ended."""
        total = 0.0
        for process in self.all:
            with suppress(psutil.Error, OSError):
                total += sum(process.cpu_times()[:4])  # user, system, and both of children that have ended
        return total

    def stop(self) -> None:
        for process in self.working:
            with suppress(psutil.Error, OSError):
                process.suspend()

    def go_on(self) -> None:
        for process in self.working:
            with suppress(psutil.Error, OSError):
                process.resume()


class Throttle:
    """A thread that holds the run to `cores`, from `start` to `close`. It does nothing where the run cannot have more."""

    def __init__(self, cores: float, pids: Callable[[], Collection[int]]) -> None:
        """`pids`: the processes of the run that this one has started."""
        self._cores, self._pids, self._family = cores, pids, Family()
        self._began = math.inf
        self._rested: tuple[float, float | None] = (0.0, None)  # seconds, and since when they rest now
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        if self._cores < core_count():
            self._began = time.monotonic()
            self._thread.start()

    @property
    def rested_seconds(self) -> float:
        """For how long the processes have rested so far."""
        seconds, since = self._rested
        return seconds if since is None else seconds + time.monotonic() - since

    def rested_share(self) -> float:
        """The share of the time so far in which they have rested."""
        return self.rested_seconds / max(time.monotonic() - self._began, 1.0)

    def close(self) -> None:
        """Lets them go on, for good."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        self._family.look(self._pids())
        budget, next_look = CoreBudget(self._cores, time.monotonic(), self._family.used_seconds()), 0.0
        while not self._over.wait(LOOK_SECONDS):
            now = time.monotonic()
            if now >= next_look:
                next_look = now + FAMILY_SECONDS
                self._family.look(self._pids())
            rest = budget.rest_seconds(now, self._family.used_seconds())
            if rest >= LEAST_REST_SECONDS:
                self._rest(min(rest, LONGEST_REST_SECONDS))

    def _rest(self, seconds: float) -> None:
        before, began = self._rested[0], time.monotonic()
        self._rested = before, began
        try:
            self._family.stop()
            self._over.wait(seconds)
        finally:
            self._family.go_on()
            self._rested = before + time.monotonic() - began, None
