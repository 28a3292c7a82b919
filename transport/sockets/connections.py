"""The connections of this process as the system knows them, to end those that libzmq would keep. Linux only."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from transport.run_dir import in_url

MOST_DESCRIPTORS = 1 << 16  # of a process
WILDCARDS = ("0.0.0.0:", "[::]:")


def close_connections(address: str) -> int:
    """Closes every connection to an address that this process has bound; returns how many. Elsewhere than on Linux, none.

    For when a resource runs out and nobody can say who takes it: a message that never ends, for example, is kept by libzmq
    and shown to nobody. Honest peers come back at once, and send again what was lost.
    """
    return sum(hang_up(descriptor) for descriptor in _connections(address))


def hang_up(descriptor: int) -> bool:
    """Ends the connection behind a descriptor, which libzmq then notices as if the peer had gone; False when there is none.

    Should the descriptor have been closed and taken by another connection meanwhile, that one's peer connects again.
    """
    try:
        with _borrowed(descriptor) as connection:
            connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """The socket behind a descriptor that remains its owner's. Raises OSError when it is none."""
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
    """All of this process, and where there is none left to ask with, all that there can be."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError as error:
        return range(MOST_DESCRIPTORS) if error.errno == errno.EMFILE else ()
