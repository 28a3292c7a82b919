"""The runner of many jobs, for suites and sweeps: a queue, one job at a time or as many as cores allow, a lock for their folder.

A queue says what is left to do, also after an earlier process of it was killed, and a job is a generator that yields while it
waits for a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from deploy.errors import ConfigError
from transport.files.file_lock import try_lock, unlock

LOCK = ".lock"  # in the folder; it holds the pid
MEMORY_SHARE = 0.8  # of the free memory; the rest is for other programs
STOP_SECONDS = 120.0  # after which a process that was asked to stop is killed
TURN_SECONDS = 0.1
Say = Callable[[str], None]  # prints a line about the progress


class Job(ABC):
    """One piece of work, which waits for one process after another."""

    clock: Callable[[], float] = time.monotonic

    def __init__(self) -> None:
        self._turns = self.work()

    @abstractmethod
    def work(self) -> Iterator[None]:
        """Does it: starts its processes, and yields several times a second while one of them runs."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """True while a process of it runs."""

    @abstractmethod
    def stop(self) -> None:
        """Asks its process to end in order."""

    @abstractmethod
    def kill(self) -> None:
        """Ends its process at once."""

    def turn(self) -> bool:
        """Continues the work until it waits; returns True once it is over."""
        return next(self._turns, OVER) is OVER

    def until_stopped(self) -> Iterator[None]:
        """For `work`: asks its process to end, and kills it if it does not."""
        self.stop()
        deadline = self.clock() + STOP_SECONDS
        while self.running:
            if self.clock() >= deadline:
                self.kill()
            yield


OVER = object()


class ProcessJob(Job):
    """A job whose `process` is one of its own children."""

    process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> None:
        if self.process is not None and self.running:
            self.process.terminate()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Queue(ABC):
    """The jobs of a study."""

    @abstractmethod
    def next(self, place: int) -> Job | None:
        """The next job, in a `place` from 0 to jobs - 1 that no other has; None where none is left."""

    def reason_to_end(self) -> str:
        """The reason to stop all jobs and to begin no others; empty if they go on."""
        return ""

    def abandoned(self, jobs: list[Job]) -> None:  # noqa: B027
        """Called when these were stopped before their end."""


class JobRunner:
    """Call `run`, or `turn` until `finished`."""

    def __init__(
        self,
        queue: Queue,
        say: Say,
        jobs: int = 1,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._queue, self._say, self._clock, self._pause = queue, say, clock, pause
        self._free = list(range(jobs))
        self._active: dict[int, Job] = {}  # by place
        self.finished = False
        self.interrupted = False
        self.reason = ""  # why it ended early; empty while there is no reason

    def run(self, signals: list[int]) -> None:
        """Until all jobs are over, or something arrives in `signals`, which interrupts it; a second one kills. It leaves no
        process of a job."""
        try:
            while not self.finished:
                if signals:
                    return self._interrupt(signals)
                self.turn()
                self._pause(TURN_SECONDS)
        except BaseException:
            for job in self._active.values():
                job.kill()
            raise

    def turn(self) -> None:
        """Continues every job, and begins others where there is room."""
        for place, job in list(self._active.items()):
            self._go_on(place, job)
        while not self._ends_early() and self._free:
            place = self._free[0]
            job = self._queue.next(place)
            if job is None:
                break
            self._free.remove(place)
            self._active[place] = job
            self._go_on(place, job)
        self.finished = not self._active

    def _ends_early(self) -> bool:
        """Stops all jobs if the queue has a reason to end; returns whether it has one."""
        if reason := self._queue.reason_to_end():
            self.reason = reason
            self._stop_all()
        return bool(reason)

    def _go_on(self, place: int, job: Job) -> None:
        if job.turn():
            del self._active[place]
            self._free = sorted([*self._free, place])

    def _interrupt(self, signals: list[int]) -> None:
        signals.clear()
        self.interrupted, self.reason = True, "interrupted"
        if self._active:
            self._say("stopping what runs; the same command resumes it (Ctrl-C again kills at once)")
        self._stop_all(signals)

    def _stop_all(self, signals: list[int] | None = None) -> None:
        """Stops all jobs and waits for them; kills them after a while, or when `signals` has something."""
        jobs = list(self._active.values())
        for job in jobs:
            job.stop()
        deadline = self._clock() + STOP_SECONDS
        while any(job.running for job in jobs):
            if signals or self._clock() >= deadline:
                for job in jobs:
                    job.kill()
            self._pause(TURN_SECONDS)
        self._queue.abandoned(jobs)
        self._active.clear()
        self.finished = True


def jobs_at_once(wanted: int | Literal["auto"], cores: int, processes: int, free_bytes: float, job_bytes: float) -> int:
    """`wanted`, or as many as cores and free memory allow, at least one. `processes` of a job are those that keep a core busy.

    Each job has at least one core. More than two at once have a core for each of their processes: runs that share cores learn
    slower than the runs will that use their settings. Raises ConfigError where fewer are possible than are wanted.
    """
    fit = int(free_bytes * MEMORY_SHARE // job_bytes)
    if wanted == "auto":
        return max(min(max(cores // processes, min(2, cores)), fit), 1)
    if wanted > cores:
        raise ConfigError(f"sweep.jobs: {wanted} trials at once need a core each, and this machine has {cores}")
    if wanted > max(fit, 1):
        needed, free = f"{wanted * job_bytes / 1e9:.1f} GB", f"{free_bytes / 1e9:.1f} GB of memory are free"
        raise ConfigError(f"sweep.jobs: {wanted} trials at once need {needed}, and {free}; at most {max(fit, 1)}")
    return wanted


@contextmanager
def locked(folder: Path, refusal: Callable[[str], Exception]) -> Iterator[None]:
    """Locks the folder until the end of the block, or of this process. Where another process has the lock, raises what `refusal`
    makes of its pid. Raises OSError, too."""
    with open(folder / LOCK, "a+b") as file:
        if not try_lock(file):
            file.seek(0)
            raise refusal(file.read().decode("ascii", "replace") or "unknown")
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        try:
            yield
        finally:
            unlock(file)
