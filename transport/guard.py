"""A server's own resources, watched: what peers can take without sending one whole message is memory and descriptors."""

from __future__ import annotations

import math
import os
import sys
import time

from transport.channel import Server
from transport.lifetime import release_memory, say

LOOK_SECONDS = 0.05
RELEASE_SECONDS = 2.0
MARGIN_BYTES = 256 << 20
DESCRIPTORS_SHARE = 0.5  # of the limit: once more are taken all connections are closed


class Guard:
    """Closes all connections of a server when the process runs out of memory or descriptors: only strangers lose by that.

    Honest peers are back within two seconds and lose nothing, since they keep what is not acknowledged.
    """

    def __init__(self, server: Server, memory_bytes: int) -> None:
        """`memory_bytes`: what the process takes at most when everything is full. Linux only; elsewhere does nothing."""
        self._server, self._memory_bytes = server, memory_bytes + MARGIN_BYTES
        self._descriptors = raise_descriptor_limit()
        self._next_look = 0.0
        self._release_at = math.inf
        self.shed = 0  # connections closed so far

    def turn(self) -> None:
        """At descriptors always, at memory when it is time."""
        if not sys.platform.startswith("linux"):
            return
        if lowest_free_descriptor() > self._descriptors * DESCRIPTORS_SHARE:
            self._close_all("half of all file descriptors were taken")  # in a tenth of a second so many may come
        if (now := time.monotonic()) < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        if now >= self._release_at:  # what the connections held has been freed by now, but is kept for later
            self._release_at = math.inf
            release_memory()
        elif self._release_at == math.inf and resident_bytes() > self._memory_bytes:
            self._release_at = now + RELEASE_SECONDS
            self._close_all(f"more than {self._memory_bytes:,} bytes of memory were taken")

    def _close_all(self, why: str) -> None:
        closed = self._server.shed()
        self.shed += closed
        say(f"{why}: closed all {closed:,} connections; those that belong here come back")


def raise_descriptor_limit() -> int:
    """Lets this process have as many descriptors as the system allows; returns how many."""
    if sys.platform == "win32":
        return 1 << 20
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # macOS says "unlimited" and means less
        return soft
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def lowest_free_descriptor() -> int:
    """How many are taken, nearly: the system always gives the lowest. Its limit when none is left."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return 1 << 30
    os.close(descriptor)
    return descriptor


def resident_bytes() -> int:
    """Memory that this process holds."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
