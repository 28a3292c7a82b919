"""Limits on memory and file descriptors that peers can use up in a server without sending one complete message."""

from __future__ import annotations

import errno
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from transport.system import in_url, release_memory
from transport.text import say

MOST_DESCRIPTORS = 1 << 16  # of a process
WILDCARDS = ("0.0.0.0:", "[::]:")
CHECK_SECONDS = 0.05
RELEASE_SECONDS = 0.2
MARGIN_BYTES = 256 << 20
SPARE_BYTES, SPARE_SECONDS = 32 << 20, 5.0  # memory above the need that is released, at most once in this time
DESCRIPTORS_SHARE = 0.5  # of the limit; above it all connections are closed


class ResourceLimits:
    """Closes all connections to a process when it runs out of memory or descriptors.

    Honest peers connect again within two seconds. They lose nothing, because they keep everything that is not acknowledged.
    """

    def __init__(self, addresses: Sequence[str], memory_bytes: float = math.inf, report: Callable[[str], None] = say) -> None:
        """`addresses`: those that the process has bound. `memory_bytes`: what it needs at most when everything is full. Does
        nothing on other systems than Linux."""
        self._addresses, self._memory_bytes, self._report = addresses, memory_bytes + MARGIN_BYTES, report
        self._descriptors = raise_descriptor_limit()
        self._ceiling = self._memory_bytes  # higher until the memory of closed connections has been released
        self._next_check = 0.0
        self._release_at = math.inf
        self._next_spare = 0.0

    def turn(self) -> None:
        """Checks descriptors in every call, memory every CHECK_SECONDS. Call it in each iteration of the main loop."""
        if not sys.platform.startswith("linux"):
            return
        if lowest_free_descriptor() > self._descriptors * DESCRIPTORS_SHARE:
            self._close_all("half of all file descriptors were in use")  # thousands can arrive in a tenth of a second
        if (now := time.monotonic()) < self._next_check or self._memory_bytes == math.inf:
            return
        self._next_check = now + CHECK_SECONDS
        if now >= self._release_at:  # libzmq has freed the memory of the connections by now, but glibc keeps it
            self._release_at, self._ceiling = math.inf, self._memory_bytes
            release_memory()
        elif (used := resident_bytes()) > self._ceiling:
            self._release_at, self._ceiling = min(self._release_at, now + RELEASE_SECONDS), used + MARGIN_BYTES
            self._close_all(f"more than {self._memory_bytes:,.0f} bytes of memory were in use")
        elif used > self._memory_bytes - MARGIN_BYTES + SPARE_BYTES and now >= self._next_spare:
            self._next_spare = now + SPARE_SECONDS  # a peer may have left unfinished messages, and gone before the limit
            release_memory()

    def _close_all(self, reason: str) -> None:
        closed = sum(map(close_connections, self._addresses))
        self._report(f"{reason}: closed all {closed:,} connections; the processes of this run connect again")


def raise_descriptor_limit() -> int:
    """Raises this process's limit of descriptors as far as the system allows; returns the new limit.

    Not above MOST_DESCRIPTORS, because child processes inherit the limit and some programs loop over all possible descriptors.
    """
    if sys.platform == "win32":
        return MOST_DESCRIPTORS
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (MOST_DESCRIPTORS if limit == resource.RLIM_INFINITY else min(limit, MOST_DESCRIPTORS) for limit in limits)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, limits[1]))
        except (OSError, ValueError):  # macOS reports "unlimited" but does not allow it
            return soft
    return hard


def lowest_free_descriptor() -> int:
    """About the number of descriptors in use, because the system always gives out the lowest free one. 2**30 if none is free."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return 1 << 30
    os.close(descriptor)
    return descriptor


def resident_bytes() -> int:
    """Resident memory of this process; 0 if no descriptor is free to read it with."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def close_connections(address: str) -> int:
    """Closes all connections to an address that this process has bound; returns their number. On other systems than Linux: 0.

    Use it when a resource runs out and the responsible peer is unknown. For example, libzmq keeps the parts of a message that
    never ends, and does not report them. Honest peers connect again at once and send again what was lost.
    """
    return sum(hang_up(descriptor) for descriptor in _connections(address))


def hang_up(descriptor: int) -> bool:
    """Shuts the connection of a descriptor down, so libzmq sees it as closed by the peer. False if there is no connection.

    If another connection has got the same descriptor meanwhile, that one is closed instead, and its peer connects again.
    """
    try:
        with _borrowed(descriptor) as connection:
            connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A socket object for a descriptor, which it does not close. Raises OSError if the descriptor is not a socket."""
    found = socket.socket(fileno=descriptor)
    try:
        yield found
    finally:
        found.detach()


def _connections(address: str) -> Iterator[int]:
    bound = address.partition("://")[2]
    for descriptor in _descriptors():
        with suppress(OSError, ValueError), _borrowed(descriptor) as found:
            name = found.getsockname()
            here = f"{in_url(name[0])}:{name[1]}" if isinstance(name, tuple) else name
            listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if not listening and (here == bound or (bound.startswith(WILDCARDS) and here.endswith(bound[bound.rindex(":") :]))):
                yield descriptor


def _descriptors() -> Sequence[int]:
    """The open descriptors of this process. If none is free to list them with: all possible numbers."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError as error:
        return range(MOST_DESCRIPTORS) if error.errno == errno.EMFILE else ()
