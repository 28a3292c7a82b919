"""Waiting for what must happen, and looking at what processes leave."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import psutil

ROOT = Path(__file__).resolve().parents[2]
SHARED_MEMORY = Path("/dev/shm")
TURN_SECONDS = 0.02
PATIENCE_SECONDS = 60.0  # for what takes a moment on an idle machine: only what never happens is late

T = TypeVar("T")


def wait_until(
    true: Callable[[], T], seconds: float = PATIENCE_SECONDS, what: str = "it happens", turn_seconds: float = TURN_SECONDS
) -> T:
    """Waits for a predicate, never for a while; returns what it said. `turn_seconds` lie between two looks."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(turn_seconds)
    return found


def outcome(call: Callable[[], object]) -> object:
    """What a call returns or raises that might wait for ever, for a pipe without a writer for example."""
    found: SimpleQueue[object] = SimpleQueue()

    def run() -> None:
        try:
            found.put(call())
        except Exception as error:
            found.put(error)

    threading.Thread(target=run, daemon=True).start()
    return found.get(timeout=PATIENCE_SECONDS)


class Pauses(threading.Thread):
    """How long this process stood still at most, in seconds, while the block lasted: heartbeats may be late by as much."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest, self._over = 0.0, threading.Event()

    def run(self) -> None:
        before = time.monotonic()
        while not self._over.wait(0.05):
            now = time.monotonic()
            self.longest, before = max(self.longest, now - before), now

    def __enter__(self) -> Pauses:
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        self.join()


class Clock:
    """Stands in for the module `time` of a module under test: time passes when the test says so, however slow the machine is."""

    def __init__(self) -> None:
        self.now = float(math.ceil(time.monotonic()))  # whole seconds, whose sums are exact

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def strftime(self, form: str) -> str:
        return time.strftime(form)


def gone(pid: int) -> bool:
    """Whether a process has ended, waited for or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def obeys(pid: int) -> bool:
    """Whether a process has a handler of its own for SIGTERM; only Linux says so."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "")
    return not caught or bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def shared_memory() -> set[str]:
    """The names in shared memory that no process uses: processes that have ended left them."""
    names = set(os.listdir(SHARED_MEMORY)) if SHARED_MEMORY.is_dir() else set()
    return names - in_use(names) if names else names


def in_use(names: set[str]) -> set[str]:
    """Those names in shared memory that some process has open or mapped."""
    held = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or is another user's
            held |= {file.path for file in process.open_files()}
            held |= {part.path for part in process.memory_maps()}
    return {name for name in names if f"{SHARED_MEMORY}/{name}" in held}
