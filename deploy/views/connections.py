"""What the servers of this machine have in common: their own names, and connections that must send a request in time."""

from __future__ import annotations

import asyncio
import re
import socket

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HOST = "127.0.0.1"
OWN_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")  # any other name may be a foreign one that resolves to here


class TimedProtocol(H11Protocol):
    """Closes connections that send no request in time, or one byte after the other: the server has few of them.

    One timer for each connection, however many requests it sends.
    """

    first_seconds = next_seconds = 5.0  # in which a connection must send a whole request, and again after each answer
    _upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if (found := transport.get_extra_info("socket")) is not None:  # asyncio does so for sockets that it has made
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answered: object = self.cycle
        self._deadline = self.loop.time() + self.first_seconds
        self.loop.call_at(self._deadline, self._close_late)

    def on_response_complete(self) -> None:
        self._answered, self._deadline = self.cycle, self.loop.time() + self.next_seconds  # first: the next may have arrived
        super().on_response_complete()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._upgraded = True
        super().handle_websocket_upgrade(event)

    def _close_late(self) -> None:
        if self._upgraded or self.transport.is_closing():
            return
        now = self.loop.time()
        if self.cycle is not self._answered:  # a request is being answered
            self.loop.call_at(now + self.next_seconds, self._close_late)
        elif now < self._deadline:
            self.loop.call_at(self._deadline, self._close_late)
        else:
            self.transport.close()
