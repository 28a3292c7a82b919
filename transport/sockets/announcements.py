"""Announcements: one header to all listeners. A slow listener misses announcements and never slows the announcer."""

from __future__ import annotations

from typing import Any

import zmq

from transport.messages import MAX_HEADER_BYTES, Message, pack
from transport.sockets.channel import UNREADABLE_PER_CALL, Channel
from transport.sockets.keys import Keys
from transport.sockets.server import Bound

SUBSCRIBE_TO_ALL = b"\x01"  # a subscription message: 1, then the topic, which is empty here
REQUEST_BYTES = 4096  # limit of a part; a handshake with keys fits


class Announcer(Bound):
    """The sending side (XPUB)."""

    def __init__(self, address: str, keys: Keys | None = None, endpoint: str = "") -> None:
        super().__init__(zmq.XPUB, REQUEST_BYTES, address, keys, endpoint, queue=2)
        self.socket.setsockopt(zmq.XPUB_MANUAL, 1)  # else a peer could fill the memory with subscriptions to new topics

    def admit(self) -> None:
        """Accepts the subscriptions of new listeners. Call it often."""
        self.keep_reachable()
        for _ in range(UNREADABLE_PER_CALL):
            parts = self._receive_parts(0)
            if parts is None:
                return
            if parts == [SUBSCRIBE_TO_ALL]:
                self.socket.setsockopt(zmq.SUBSCRIBE, b"")

    def announce(self, message: Message) -> None:
        self.admit()
        self._send_parts([pack(message)])


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
