"""Closes connections that libzmq would keep, through their file descriptors. Linux only."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from transport.addresses import in_url

MOST_DESCRIPTORS = 1 << 16  # of a process
WILDCARDS = ("0.0.0.0:", "[::]:")


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
