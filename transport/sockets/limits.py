"""Limits on what peers can take without sending one whole message: a server's memory and file descriptors."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence

from transport.lifetime import release_memory, say
from transport.sockets.connections import MOST_DESCRIPTORS, close_connections

LOOK_SECONDS = 0.05
RELEASE_SECONDS = 0.2
MARGIN_BYTES = 256 << 20
DESCRIPTORS_SHARE = 0.5  # of the limit: once more are taken all connections are closed


class ResourceLimits:
    """Closes all connections to a process when it runs out of memory or descriptors: only attackers lose by that.

    Honest peers are back within two seconds and lose nothing, since they keep what is not acknowledged.
    """

    def __init__(self, addresses: Sequence[str], memory_bytes: float = math.inf, report: Callable[[str], None] = say) -> None:
        """`addresses`: those that the process has bound; `memory_bytes`: what it takes at most when everything is full.
        Linux only; elsewhere does nothing."""
        self._addresses, self._memory_bytes, self._report = addresses, memory_bytes + MARGIN_BYTES, report
        self._descriptors = raise_descriptor_limit()
        self._ceiling = self._memory_bytes  # higher while what was taken is still to be given back
        self._next_look = 0.0
        self._release_at = math.inf

    def turn(self) -> None:
        """Looks at descriptors in every turn of the main loop, at memory every LOOK_SECONDS."""
        if not sys.platform.startswith("linux"):
            return
        if lowest_free_descriptor() > self._descriptors * DESCRIPTORS_SHARE:
            self._close_all("half of all file descriptors were taken")  # in a tenth of a second so many may come
        if (now := time.monotonic()) < self._next_look or self._memory_bytes == math.inf:
            return
        self._next_look = now + LOOK_SECONDS
        if now >= self._release_at:  # what the connections took has been freed by now, but glibc keeps it
            self._release_at, self._ceiling = math.inf, self._memory_bytes
            release_memory()
        elif (taken := resident_bytes()) > self._ceiling:
            self._release_at, self._ceiling = min(self._release_at, now + RELEASE_SECONDS), taken + MARGIN_BYTES
            self._close_all(f"more than {self._memory_bytes:,.0f} bytes of memory were taken")

    def _close_all(self, why: str) -> None:
        closed = sum(map(close_connections, self._addresses))
        self._report(f"{why}: closed all {closed:,} connections; those of this run come back")


def raise_descriptor_limit() -> int:
    """Lets this process have as many descriptors as the system allows; returns how many. Not beyond MOST_DESCRIPTORS, since its
    children inherit the limit, and some programs count up to it."""
    if sys.platform == "win32":
        return MOST_DESCRIPTORS
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (MOST_DESCRIPTORS if limit == resource.RLIM_INFINITY else min(limit, MOST_DESCRIPTORS) for limit in limits)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, limits[1]))
        except (OSError, ValueError):  # macOS says "unlimited" and means less
            return soft
    return hard


def lowest_free_descriptor() -> int:
    """How many are taken, nearly: the system always gives the lowest. Its limit when none is left."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return 1 << 30
    os.close(descriptor)
    return descriptor


def resident_bytes() -> int:
    """Memory that this process holds; 0 where no descriptor is left to ask with."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
