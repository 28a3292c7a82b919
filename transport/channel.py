"""Sockets: the only file that knows ZeroMQ.

Every socket closes without lingering (what matters is acknowledged by the layer above), has a limit on the size of a part, and
survives the restart of its peer. Queues are bounded by credit in the layer above; the high-water marks are a backstop.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import zmq

from transport.messages import MAX_HEADER_BYTES, MAX_PARTS, MalformedMessage, Message, pack, unpack

MAX_PART_BYTES = 64 * 1024 * 1024
FRAME_BYTES = 64 * 1024  # larger payloads are cut to this, so that heartbeats pass between the pieces even at 40 kB/s
QUEUE_MESSAGES = 1000
RECONNECT_MS, RECONNECT_MAX_MS = 50, 2000
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 1000, 3000  # of silence; a part must not take so long to arrive
CONNECT_TIMEOUT_MS = 2000  # the system would wait longer and longer before it tries again

Parts = list[bytes]
Arrival = tuple[Any, Parts]


def _context() -> zmq.Context[zmq.Socket[bytes]]:
    return zmq.Context.instance()


def cut(payload: bytes | memoryview) -> list[memoryview]:
    """Cuts a payload into parts of the frame limit, or larger ones where there would be too many."""
    view = memoryview(payload).cast("B")
    size = max(FRAME_BYTES, len(view) // (MAX_PARTS // 2))
    return [view[start : start + size] for start in range(0, len(view), size)]


class Channel:
    """What all sockets share: limits, counters, a way to be waited for."""

    def __init__(self, kind: int, max_part_bytes: int) -> None:
        """Makes the socket and sets every option before it is bound or connected."""
        self.socket = _context().socket(kind)
        self.malformed = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        options = {
            zmq.LINGER: 0,
            zmq.MAXMSGSIZE: max_part_bytes,
            zmq.SNDHWM: QUEUE_MESSAGES,
            zmq.RCVHWM: QUEUE_MESSAGES,
            zmq.RECONNECT_IVL: RECONNECT_MS,
            zmq.RECONNECT_IVL_MAX: RECONNECT_MAX_MS,
            zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
            zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS,
            zmq.HANDSHAKE_IVL: 5000,
            zmq.CONNECT_TIMEOUT: CONNECT_TIMEOUT_MS,
        }
        for option, value in options.items():
            self.socket.setsockopt(option, value)

    def close(self, linger_seconds: float = 0) -> None:
        """Closes; what is not sent yet has `linger_seconds` to go out while the process ends, then it is dropped."""
        self.socket.close(linger=int(linger_seconds * 1000))

    def _receive_readable(self, timeout_seconds: float, envelope: int) -> tuple[Parts, Any, Parts] | None:
        """The next well-formed message as (its first `envelope` parts, message, raw parts). Others are counted and dropped."""
        deadline = time.monotonic() + timeout_seconds
        while (parts := self._receive_parts(max(deadline - time.monotonic(), 0.0) if timeout_seconds else 0.0)) is not None:
            try:
                if not envelope < len(parts) <= MAX_PARTS:
                    raise MalformedMessage(f"{len(parts)} parts")
                return parts[:envelope], unpack(parts[envelope]), parts[envelope + 1 :]
            except MalformedMessage:
                self.malformed += 1
        return None

    def _receive_parts(self, timeout_seconds: float) -> Parts | None:
        try:
            if timeout_seconds > 0 and not self.socket.poll(int(timeout_seconds * 1000) or 1):
                return None
            parts = self.socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None
        self.received_bytes += sum(map(len, parts))
        return parts

    def _send_parts(self, parts: Sequence[bytes | memoryview]) -> bool:
        try:
            self.socket.send_multipart(parts, zmq.DONTWAIT)
        except (zmq.Again, zmq.ZMQError) as error:
            # Full, or (EHOSTUNREACH) gone: either way the layer above decides what to do about silence.
            if isinstance(error, zmq.Again) or error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        self.sent_bytes += sum(map(len, parts))
        return True


class Server(Channel):
    """Bound (ROUTER): many peers, each known by an identity that lasts as long as its connection."""

    def __init__(self, address: str, max_part_bytes: int = MAX_PART_BYTES, queue: int = QUEUE_MESSAGES) -> None:
        """Binds; holds at most `queue` unsent messages per peer. Raises OSError naming the address when it cannot be bound."""
        super().__init__(zmq.ROUTER, max_part_bytes)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.SNDHWM, queue)
        self.address = _bind(self.socket, address)

    def receive(self, timeout_seconds: float = 0) -> tuple[bytes, Any, Parts] | None:
        """The next well-formed message as (peer, message, raw parts), or None. Malformed ones are counted and dropped."""
        found = self._receive_readable(timeout_seconds, envelope=1)
        return (found[0][0], found[1], found[2]) if found else None

    def send(self, peer: bytes, message: Message, parts: Sequence[bytes | memoryview] = ()) -> bool:
        """Sends without waiting; False when the peer is gone or its queue is full."""
        return self._send_parts([peer, pack(message), *parts])


class Client(Channel):
    """Connected (DEALER): one peer, which may come, go and come back."""

    def __init__(self, address: str, max_part_bytes: int = MAX_PART_BYTES) -> None:
        """Connects in the background; the server need not be there yet."""
        super().__init__(zmq.DEALER, max_part_bytes)
        self.socket.connect(address)

    def receive(self, timeout_seconds: float = 0) -> Arrival | None:
        """The next well-formed message as (message, raw parts), or None."""
        found = self._receive_readable(timeout_seconds, envelope=0)
        return (found[1], found[2]) if found else None

    def send(self, message: Message, parts: Sequence[bytes | memoryview] = ()) -> bool:
        """Sends without waiting; False when the queue is full."""
        return self._send_parts([pack(message), *parts])


class Announcer(Channel):
    """Bound (XPUB): one header to whoever listens. A slow listener misses announcements; it never slows this side."""

    def __init__(self, address: str) -> None:
        """Binds. Raises OSError naming the address when that is impossible."""
        super().__init__(zmq.XPUB, MAX_HEADER_BYTES)
        self.socket.setsockopt(zmq.SNDHWM, 2)
        self.address = _bind(self.socket, address)

    def announce(self, message: Message) -> None:
        """Sends to all."""
        while self._receive_parts(0) is not None:  # subscriptions; nothing to learn from them
            pass
        self._send_parts([pack(message)])


class Listener(Channel):
    """Connected (SUB): holds only the newest announcement."""

    def __init__(self, address: str) -> None:
        """Connects in the background."""
        super().__init__(zmq.SUB, MAX_HEADER_BYTES)
        self.socket.setsockopt(zmq.CONFLATE, 1)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.socket.connect(address)

    def newest(self) -> Any | None:
        """The newest announcement since the last call, or None."""
        found = self._receive_readable(0, envelope=0)
        return found[1] if found else None


def _bind(socket: zmq.Socket[bytes], address: str) -> str:
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise OSError(f"cannot bind {address}: {error.strerror}") from error
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))


def wait(channels: Iterable[Channel], timeout_seconds: float) -> None:
    """Blocks until one of the channels has something to read, or the time is over."""
    poller = zmq.Poller()
    for channel in channels:
        poller.register(channel.socket, zmq.POLLIN)
    poller.poll(max(1, int(timeout_seconds * 1000)))
