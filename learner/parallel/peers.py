"""Ends a process whose peers have died while it waits for them where nothing wakes it.

gloo raises an error in a sum whose peer has died. NCCL may go on waiting, and then the host waits for the device: no Python code
runs in the main thread, not even the handler of the signal by which the launcher ends the process. Only the launcher's SIGKILL
would end it, half a minute later.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress

import psutil

BROKEN_STATUS = 3  # exit status of a process that ended because another process of the group had ended
LOOK_SECONDS = 1.0
LOSS_SECONDS = 10.0  # after a peer's death, in which a process that notices it itself has ended


class PeerWatch:
    """A thread that looks at the group's other processes, which run on this machine, until it is closed."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._peers: list[psutil.Process] = []
        self._lost = False
        self._closed = threading.Event()
        for pid in pids:
            try:
                self._peers.append(psutil.Process(pid))
            except psutil.NoSuchProcess:
                self._lost = True
        threading.Thread(target=self._look, daemon=True, name="peers").start()

    def close(self) -> None:
        """The other processes may end from now on."""
        self._closed.set()

    def _look(self) -> None:
        while not self._lost and not any(map(_ended, self._peers)):
            if self._closed.wait(LOOK_SECONDS):
                return
        if not self._closed.wait(LOSS_SECONDS):
            sys.stdout.flush()
            os._exit(BROKEN_STATUS)  # the launcher says which process died


def _ended(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True
