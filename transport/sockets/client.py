"""The connecting side of a link: one peer, which may restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq

from transport.messages import Message, pack
from transport.sockets.channel import MAX_PART_BYTES, Channel
from transport.sockets.frames import Part, Parts
from transport.sockets.keys import ClientKeys


class Client(Channel):
    """A DEALER socket."""

    def __init__(
        self, address: str, max_part_bytes: int = MAX_PART_BYTES, keys: ClientKeys | None = None, endpoint: str = ""
    ) -> None:
        """Connects in the background, also if the server starts later. `endpoint`: the name of the server's socket, by which its
        key is found. Raises KeysError."""
        super().__init__(zmq.DEALER, max_part_bytes, address, keys)
        self._connect(address, endpoint)

    def receive(self, timeout_seconds: float = 0) -> tuple[Any, Parts] | None:
        """The next well-formed message as (message, raw parts), or None."""
        found = self._receive_readable(timeout_seconds, envelope=0)
        return (found[1], found[2]) if found else None

    def send(self, message: Message, parts: Sequence[Part] = ()) -> bool:
        """Sends without waiting; False when the queue is full."""
        return self._send_parts([pack(message), *parts])
