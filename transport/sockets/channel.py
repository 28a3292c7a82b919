"""The base class of all sockets.

Every socket closes without lingering (the layer above acknowledges its messages), limits the size of a part, and continues after
a restart of its peer. Credit in the layer above limits the queues; the high-water marks are a second limit.

With keys (transport/sockets/keys.py) a TCP socket uses CURVE: everything is encrypted, the client verifies the server's key, and
the server admits only the keys on its list (transport/sockets/authenticator.py). Over ipc the mode of the folder protects it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import zmq

from transport.messages.codec import unpack
from transport.messages.fields import MAX_PARTS, MalformedMessage
from transport.sockets.authenticator import AUTHENTICATOR, WATCH_SECONDS, Handshakes
from transport.sockets.keys import ClientKeys

FRAME_BYTES = 64 * 1024  # larger payloads are cut to this, so that heartbeats pass between the pieces even at 40 kB/s

Parts = list[bytes]
Shared = zmq.Frame
Part = bytes | memoryview | Shared
MAX_PART_BYTES = 64 * 1024 * 1024
QUEUE_MESSAGES = 1000
RECONNECT_MS, RECONNECT_MAX_MS = 50, 2000
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 1000, 3000  # a part must arrive in less than the timeout
CONNECT_MS, HANDSHAKE_MS = 2000, 5000  # the system's own intervals between attempts grow
UNACKNOWLEDGED_MS = 20_000  # TCP closes a connection after retransmitting for this long; Linux's default is a quarter of an hour
BACKLOG = 128  # connections that may wait to be accepted
CURVE_BYTES = 64  # encryption adds fewer bytes to a part
# Only the connecting side sends heartbeats and announces the timeout of the other side. libzmq 4.3.5 aborts the process when its
# own heartbeat is due on a connection that broke while the read queue was full, and a peer could cause that.
HEARTBEATS = {
    zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
    zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS,
    zmq.HEARTBEAT_TTL: HEARTBEAT_TIMEOUT_MS,
}
KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 30, zmq.TCP_KEEPALIVE_INTVL: 10, zmq.TCP_KEEPALIVE_CNT: 3}
BOUND = (zmq.ROUTER, zmq.XPUB)
UNREADABLE_SECONDS = 0.005  # that one call spends on messages of peers in quarantine
UNREADABLE_PER_CALL = 256  # malformed messages; a flood of them must not keep a process from its other work


class Channel:
    """A ZeroMQ socket with limits and counters."""

    def __init__(self, kind: int, max_part_bytes: int, address: str, keys: ClientKeys | None) -> None:
        """Makes the socket and sets all options, before it is bound or connected. Only TCP uses the keys."""
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        self.malformed = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self._keys = keys if address.startswith("tcp://") else None
        self._handshakes: Handshakes | None = None
        self._next_check = 0.0
        options = {
            zmq.LINGER: 0,
            zmq.MAXMSGSIZE: max_part_bytes + (CURVE_BYTES if self._keys else 0),
            zmq.SNDHWM: QUEUE_MESSAGES,
            zmq.RCVHWM: QUEUE_MESSAGES,
            zmq.RECONNECT_IVL: RECONNECT_MS,
            zmq.RECONNECT_IVL_MAX: RECONNECT_MAX_MS,
            zmq.HANDSHAKE_IVL: HANDSHAKE_MS,
        }
        if address.startswith("tcp://"):  # over ipc the system reports at once that the other process has ended
            options |= KEEPALIVE if kind in BOUND else HEARTBEATS
            options |= {
                # Only for IPv6 addresses: with it libzmq resolves a name that has both kinds of address to IPv6 only.
                zmq.IPV6: int("[" in address),
                zmq.BACKLOG: BACKLOG,
                zmq.CONNECT_TIMEOUT: CONNECT_MS,
                zmq.TCP_MAXRT: UNACKNOWLEDGED_MS,
            }
        for option, value in options.items():
            self.socket.setsockopt(option, value)
        if self._keys:
            self.socket.setsockopt_string(zmq.CURVE_PUBLICKEY, self._keys.pair.public)
            self.socket.setsockopt_string(zmq.CURVE_SECRETKEY, self._keys.pair.secret)
            self._handshakes = Handshakes(self.socket)

    def _connect(self, address: str, endpoint: str) -> None:
        self.address, self._endpoint = address, endpoint
        if self._keys:
            self.socket.setsockopt_string(zmq.CURVE_SERVERKEY, self._keys.server(endpoint))
        self.socket.connect(address)

    def close(self, linger_seconds: float = 0) -> None:
        """Closes; unsent messages are dropped after `linger_seconds`, during which they can still be sent."""
        if self._handshakes:
            self._handshakes.close()
        self.socket.close(linger=int(linger_seconds * 1000))

    def _receive_readable(self, timeout_seconds: float, envelope: int) -> tuple[Parts, Any, Parts] | None:
        """The next well-formed message as (its first `envelope` parts, message, raw parts). Others are counted and dropped."""
        began = time.monotonic()
        deadline = began + timeout_seconds
        for _ in range(UNREADABLE_PER_CALL):
            parts = self._receive_parts(max(deadline - time.monotonic(), 0.0) if timeout_seconds else 0.0)
            if parts is None:
                return None
            if not parts:  # from a peer in quarantine
                if time.monotonic() > began + timeout_seconds + UNREADABLE_SECONDS:
                    return None
                continue
            try:
                if not envelope < len(parts) <= MAX_PARTS:
                    raise MalformedMessage(f"{len(parts)} parts")
                return parts[:envelope], unpack(parts[envelope]), parts[envelope + 1 :]
            except MalformedMessage as error:
                self._on_malformed(parts[:envelope], str(error))
        return None  # the next call reads on

    def _on_malformed(self, envelope: Parts, reason: str) -> None:
        self.malformed += 1

    def _receive_parts(self, timeout_seconds: float) -> Parts | None:
        if self._handshakes and time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + WATCH_SECONDS
            self._check_handshakes(self._handshakes)
        try:
            if timeout_seconds > 0 and not self.socket.poll(int(timeout_seconds * 1000) or 1):
                return None
            parts = self._take_parts()
        except zmq.Again:
            return None
        self.received_bytes += sum(map(len, parts))
        return parts

    def _take_parts(self) -> Parts:
        return self.socket.recv_multipart(zmq.DONTWAIT)

    def _check_handshakes(self, handshakes: Handshakes) -> None:
        """Warns when the server does not admit this client. Called twice a second for sockets with keys."""
        if handshakes.warning_due():
            name = self._keys.name if self._keys else ""
            AUTHENTICATOR.say(
                f"no connection to {self._endpoint} at {self.address} as {name}: {handshakes.failed} handshakes have failed; "
                "check that this key is on the server's list and that keys/public belongs to this run; still trying"
            )

    def _send_parts(self, parts: Sequence[Part]) -> bool:
        try:
            self.socket.send_multipart(parts, zmq.DONTWAIT, copy=not any(isinstance(part, Shared) for part in parts))
        except (zmq.Again, zmq.ZMQError) as error:
            # The queue is full, or (EHOSTUNREACH) the peer is gone. The layer above reacts to the peer's silence.
            if isinstance(error, zmq.Again) or error.errno == zmq.EHOSTUNREACH:
                return False
            raise
        self.sent_bytes += sum(map(len, parts))
        return True


def wait(channels: Iterable[Channel], timeout_seconds: float) -> list[Channel]:
    """Blocks until one of the channels has a message, or the time is over; returns those that have one."""
    by_socket: dict[Any, Channel] = {channel.socket: channel for channel in channels}
    ready = zmq.zmq_poll([(socket, zmq.POLLIN) for socket in by_socket], max(1, int(timeout_seconds * 1000)))
    return [by_socket[socket] for socket, _ in ready]


def piece_bytes(payload_bytes: int) -> int:
    """The size of the pieces that `cut` makes of a payload: the frame limit, or more if there would be too many pieces."""
    return max(FRAME_BYTES, payload_bytes // (MAX_PARTS // 2))


def cut(payload: bytes | memoryview) -> list[memoryview]:
    view = memoryview(payload).cast("B")
    size = piece_bytes(len(view))
    return [view[start : start + size] for start in range(0, len(view), size)]


def shared(parts: Iterable[bytes | memoryview]) -> list[Shared]:
    """Wraps parts so that sending them, also to many peers, does not copy them."""
    return [Shared(part, copy=False) for part in parts]
