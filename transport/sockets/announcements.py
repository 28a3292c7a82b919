"""One header to every listener: a slow one misses announcements, and never slows the side that makes them."""

from __future__ import annotations

from typing import Any

import zmq

from transport.messages import MAX_HEADER_BYTES, Message, pack
from transport.sockets.channel import UNREADABLE_PER_CALL, Channel
from transport.sockets.keys import Keys
from transport.sockets.server import Bound

SUBSCRIBE_TO_ALL = b"\x01"  # how a subscription arrives: 1, and the first bytes of what is asked for
REQUEST_BYTES = 4096  # of a part; a handshake with keys fits


class Announcer(Bound):
    """XPUB."""

    def __init__(self, address: str, keys: Keys | None = None, endpoint: str = "") -> None:
        """Binds as `Bound` does."""
        super().__init__(zmq.XPUB, REQUEST_BYTES, address, keys, endpoint, queue=2)
        self.socket.setsockopt(zmq.XPUB_MANUAL, 1)  # or a peer that subscribes to ever new topics could fill the memory

    def admit(self) -> None:
        """Admits new listeners, to everything: there is nothing else. Call it often."""
        for _ in range(UNREADABLE_PER_CALL):
            parts = self._receive_parts(0)
            if parts is None:
                return
            if parts == [SUBSCRIBE_TO_ALL]:
                self.socket.setsockopt(zmq.SUBSCRIBE, b"")

    def announce(self, message: Message) -> None:
        """Sends to all."""
        self.admit()
        self._send_parts([pack(message)])


class Listener(Channel):
    """SUB: holds only the newest announcement."""

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
