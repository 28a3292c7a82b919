"""The connecting side of a link: one peer, which may restart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq

from transport.messages.codec import pack
from transport.messages.fields import MAX_HEADER_BYTES, Message
from transport.sockets.channel import MAX_PART_BYTES, Channel, Part, Parts
from transport.sockets.keys import ClientKeys, Keys


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


class Listener(Channel):
    """The receiving side (SUB). It keeps only the newest announcement."""

    def __init__(self, address: str, keys: Keys | None = None, endpoint: str = "") -> None:
        """Connects in the background. Raises KeysError."""
        super().__init__(zmq.SUB, MAX_HEADER_BYTES, address, keys)
        self.socket.setsockopt(zmq.CONFLATE, 1)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._connect(address, endpoint)

    def newest(self) -> Any | None:
        """The newest announcement since the last call, or None."""
        found = self._receive_readable(0, envelope=0)
        return found[1] if found else None
