"""Sockets: the only file that knows ZeroMQ.

Every socket closes without lingering (what matters is acknowledged by the layer above), has a limit on the size of a part, and
survives the restart of its peer. Queues are bounded by credit in the layer above; the high-water marks are a backstop.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import zmq

from transport.conduct import Conduct
from transport.messages import MAX_HEADER_BYTES, MAX_PARTS, MalformedMessage, Message, Refused, pack, unpack

MAX_PART_BYTES = 64 * 1024 * 1024
FRAME_BYTES = 1024 * 1024  # larger payloads are cut to this, so that heartbeats pass between the pieces
QUEUE_MESSAGES = 1000
RECONNECT_MS, RECONNECT_MAX_MS = 50, 2000
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 1000, 10_000
# Only the side that connects sends heartbeats, and says how long the other may wait for the next one. libzmq 4.3.5 aborts when a
# heartbeat of its own is due on a connection that broke while the queue for reading was full: a peer could bring that about.
HEARTBEATS = {
    zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
    zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS,
    zmq.HEARTBEAT_TTL: HEARTBEAT_TIMEOUT_MS,
}
KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 30, zmq.TCP_KEEPALIVE_INTVL: 10, zmq.TCP_KEEPALIVE_CNT: 3}
BOUND = (zmq.ROUTER, zmq.XPUB)
UNREADABLE_SECONDS = 0.005  # that one call may spend on messages that nobody reads
UNREADABLE_PER_CALL = 256  # messages; a flood of nonsense must not keep a process from its other work
SUBSCRIBE_TO_ALL = b"\x01"  # as a listener's wish arrives: 1, and the first bytes of what it would hear
REQUEST_PARTS = 64  # of a message to a server; a chunk has a few
REQUEST_BYTES = 4096  # of a part sent to who only answers questions; a handshake with keys fits

Parts = list[bytes]
Shared = zmq.Frame
Part = bytes | memoryview | Shared
Arrival = tuple[Any, Parts]


def _context() -> zmq.Context[zmq.Socket[bytes]]:
    return zmq.Context.instance()


def cut(payload: bytes | memoryview) -> list[memoryview]:
    """Cuts a payload into parts of the frame limit."""
    view = memoryview(payload).cast("B")
    return [view[start : start + FRAME_BYTES] for start in range(0, len(view), FRAME_BYTES)]


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
            zmq.HANDSHAKE_IVL: 5000,
        } | (KEEPALIVE if kind in BOUND else HEARTBEATS)
        for option, value in options.items():
            self.socket.setsockopt(option, value)

    def close(self, linger_seconds: float = 0) -> None:
        """Closes; what is not sent yet has `linger_seconds` to go out while the process ends, then it is dropped."""
        self.socket.close(linger=int(linger_seconds * 1000))

    def _receive_readable(self, timeout_seconds: float, envelope: int) -> tuple[Parts, Any, Parts] | None:
        """The next well-formed message as (its first `envelope` parts, message, raw parts). Others are counted and dropped."""
        began = time.monotonic()
        deadline = began + timeout_seconds
        for _ in range(UNREADABLE_PER_CALL):
            parts = self._receive_parts(max(deadline - time.monotonic(), 0.0) if timeout_seconds else 0.0)
            if parts is None:
                return None
            if not parts:  # of somebody in quarantine
                if time.monotonic() > began + timeout_seconds + UNREADABLE_SECONDS:
                    return None
                continue
            try:
                if not envelope < len(parts) <= MAX_PARTS:
                    raise MalformedMessage(f"{len(parts)} parts")
                return parts[:envelope], unpack(parts[envelope]), parts[envelope + 1 :]
            except MalformedMessage as error:
                self._on_malformed(parts[:envelope], str(error))
        return None  # enough for now: what can be read comes with the next call

    def _on_malformed(self, envelope: Parts, reason: str) -> None:
        self.malformed += 1

    def _receive_parts(self, timeout_seconds: float) -> Parts | None:
        try:
            if timeout_seconds > 0 and not self.socket.poll(int(timeout_seconds * 1000) or 1):
                return None
            parts = self.socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None
        self.received_bytes += sum(map(len, parts))
        return parts

    def _send_parts(self, parts: Sequence[Part]) -> bool:
        try:
            self.socket.send_multipart(parts, zmq.DONTWAIT, copy=not any(isinstance(part, Shared) for part in parts))
        except (zmq.Again, zmq.ZMQError) as error:
            # Full, or (EHOSTUNREACH) gone: either way the layer above decides what to do about silence.
            if isinstance(error, zmq.Again) or error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        self.sent_bytes += sum(map(len, parts))
        return True


class Server(Channel):
    """Bound (ROUTER): many peers, each known by an identity that lasts as long as its connection.

    A peer that keeps sending what cannot be used is put in quarantine: it is told so once, nothing of it is read any more, and
    its connection is closed at a later message. libzmq has no call for that; but it says which descriptor a message came by.
    """

    def __init__(
        self,
        address: str,
        max_part_bytes: int = MAX_PART_BYTES,
        queue: int = QUEUE_MESSAGES,
        receive_queue: int = QUEUE_MESSAGES,
    ) -> None:
        """Binds; holds at most `queue` unsent and `receive_queue` unread messages per peer.

        Raises OSError naming the address when it cannot be bound.
        """
        super().__init__(zmq.ROUTER, max_part_bytes)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.SNDHWM, queue)
        self.socket.setsockopt(zmq.RCVHWM, receive_queue)
        self.conduct = Conduct()
        self.quarantined = 0  # peers so far
        self.unread = 0  # messages of theirs
        self._expelled: list[bytes] = []
        self.address = _bind(self.socket, address)

    def offence(self, peer: bytes, reason: str, weight: float = 1.0) -> None:
        """Counts against a peer something that no honest one would send, and tells it the reason if that was once too often."""
        if self.conduct.offence(peer, weight):
            self.quarantined += 1
            self.send(peer, Refused(f"in quarantine, for sending again and again what cannot be used: {reason}"))
            self._expelled.append(peer)

    def expelled(self) -> list[bytes]:
        """Who has been put in quarantine since the last call."""
        expelled, self._expelled = self._expelled, []
        return expelled

    def _on_malformed(self, envelope: Parts, reason: str) -> None:
        super()._on_malformed(envelope, reason)
        if envelope:
            self.offence(envelope[0], "no message of this protocol")
            self.conduct.write_off(envelope[0])

    def _receive_parts(self, timeout_seconds: float) -> Parts | None:
        """As any channel; empty for a message of somebody in quarantine."""
        if not self.conduct.anyone:
            parts = super()._receive_parts(timeout_seconds)
            return parts if parts is None else self._few(parts)
        try:
            if timeout_seconds > 0 and not self.socket.poll(int(timeout_seconds * 1000) or 1):
                return None
            first = self.socket.recv(zmq.DONTWAIT, copy=False)
            parts = [first.bytes, *self.socket.recv_multipart(zmq.DONTWAIT)]  # a message arrives whole
        except zmq.Again:
            return None
        if self.conduct.quarantined(parts[0]):
            self.unread += 1
            if self.conduct.told(parts[0]):
                _hang_up(int(first.get(zmq.SRCFD)))
            return []
        self.received_bytes += sum(map(len, parts))
        return self._few(parts)

    def _few(self, parts: Parts) -> Parts:
        """The parts; none where there are so many that to read them was an attack. Its sender is not even told."""
        if len(parts) <= REQUEST_PARTS:
            return parts
        self.malformed += 1
        if self.conduct.quarantine(parts[0], told=True):
            self.quarantined += 1
            self._expelled.append(parts[0])
        return []

    def shed(self) -> int:
        """Closes every connection; returns how many. Honest peers come back at once, and send again what was lost.

        For when a resource runs out and nobody can say who takes it: a message that never ends, for example, is kept by libzmq
        and shown to nobody. Linux only; elsewhere does nothing.
        """
        return sum(_hang_up(descriptor) for descriptor in _connections(self.address))

    def receive(self, timeout_seconds: float = 0) -> tuple[bytes, Any, Parts] | None:
        """The next well-formed message as (peer, message, raw parts), or None. Malformed ones are counted and dropped."""
        found = self._receive_readable(timeout_seconds, envelope=1)
        return (found[0][0], found[1], found[2]) if found else None

    def send(self, peer: bytes, message: Message, parts: Sequence[Part] = ()) -> bool:
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

    def send(self, message: Message, parts: Sequence[Part] = ()) -> bool:
        """Sends without waiting; False when the queue is full."""
        return self._send_parts([pack(message), *parts])


class Announcer(Channel):
    """Bound (XPUB): one header to whoever listens. A slow listener misses announcements; it never slows this side."""

    def __init__(self, address: str) -> None:
        """Binds. Raises OSError naming the address when that is impossible."""
        super().__init__(zmq.XPUB, REQUEST_BYTES)
        self.socket.setsockopt(zmq.SNDHWM, 2)
        self.socket.setsockopt(zmq.XPUB_MANUAL, 1)  # or whoever subscribes to ever new topics could fill the memory
        self.address = _bind(self.socket, address)

    def admit(self) -> None:
        """Takes in who wants to listen: to everything, there being nothing else. Call it often."""
        for _ in range(UNREADABLE_PER_CALL):
            wishes = self._receive_parts(0)
            if wishes is None:
                return
            if wishes == [SUBSCRIBE_TO_ALL]:
                self.socket.setsockopt(zmq.SUBSCRIBE, b"")

    def announce(self, message: Message) -> None:
        """Sends to all."""
        self.admit()
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


def shared(parts: Iterable[bytes | memoryview]) -> list[Shared]:
    """Parts that go to many peers and are held in memory once."""
    return [Shared(part, copy=False) for part in parts]


def _connections(address: str) -> Iterator[int]:
    """The descriptors of this process that are connections to an address it has bound."""
    try:
        descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return
    bound = address.partition("://")[2]
    for descriptor in descriptors:
        with suppress(OSError, ValueError), socket.socket(fileno=os.dup(descriptor)) as found:
            name = found.getsockname()
            here = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else name
            listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if not listening and (here == bound or (bound.startswith("0.0.0.0:") and here.endswith(bound[7:]))):
                yield descriptor


def _hang_up(descriptor: int) -> bool:
    """Ends the connection behind a descriptor, which libzmq then notices as if the peer had gone; False when there is none.

    Should the descriptor have been closed and taken by another connection meanwhile, that one's peer connects again.
    """
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True


def wait(channels: Iterable[Channel], timeout_seconds: float) -> None:
    """Blocks until one of the channels has something to read, or the time is over."""
    poller = zmq.Poller()
    for channel in channels:
        poller.register(channel.socket, zmq.POLLIN)
    poller.poll(max(1, int(timeout_seconds * 1000)))
