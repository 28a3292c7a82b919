"""What all sockets share. transport/sockets is the only folder that knows ZeroMQ.

Every socket closes without lingering (what matters is acknowledged by the layer above), has a limit on the size of a part, and
survives the restart of its peer. Queues are bounded by credit in the layer above; the high-water marks are a backstop.

With keys (transport/sockets/keys.py) a TCP socket speaks CURVE: everything is encrypted, the client knows the server by its key,
and a server admits only the keys on its list (transport/sockets/authenticator.py). Over ipc the folder's mode does that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import zmq

from transport.messages import MAX_PARTS, MalformedMessage, unpack
from transport.sockets.authenticator import AUTHENTICATOR, LOOK_SECONDS, Handshakes
from transport.sockets.frames import Part, Parts, Shared
from transport.sockets.keys import Keys

MAX_PART_BYTES = 64 * 1024 * 1024
QUEUE_MESSAGES = 1000
RECONNECT_MS, RECONNECT_MAX_MS = 50, 2000
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 1000, 3000  # of silence; a part must not take so long to arrive
CONNECT_MS, HANDSHAKE_MS = 2000, 5000  # the system would wait longer and longer before it tries again
UNACKNOWLEDGED_MS = 20_000  # that TCP sends again before it gives a connection up; Linux's own patience is a quarter of an hour
BACKLOG = 128  # connections that may wait to be accepted
CURVE_BYTES = 64  # more than what encryption adds to a part
# Only the side that connects sends heartbeats, and says how long the other may wait for the next one. libzmq 4.3.5 aborts when a
# heartbeat of its own is due on a connection that broke while the queue for reading was full: a peer could bring that about.
HEARTBEATS = {
    zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
    zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS,
    zmq.HEARTBEAT_TTL: HEARTBEAT_TIMEOUT_MS,
}
KEEPALIVE = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_IDLE: 30, zmq.TCP_KEEPALIVE_INTVL: 10, zmq.TCP_KEEPALIVE_CNT: 3}
BOUND = (zmq.ROUTER, zmq.XPUB)
UNREADABLE_SECONDS = 0.005  # that one call may spend on messages that are not read
UNREADABLE_PER_CALL = 256  # messages; a flood of nonsense must not keep a process from its other work


class Channel:
    """What all sockets share: limits, counters, a way to be waited for."""

    def __init__(self, kind: int, max_part_bytes: int, address: str, keys: Keys | None) -> None:
        """Makes the socket and sets every option before it is bound or connected. Keys are for TCP alone."""
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        self.malformed = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self._keys = keys if address.startswith("tcp://") else None
        self._handshakes: Handshakes | None = None
        self._next_look = 0.0
        options = {
            zmq.LINGER: 0,
            zmq.MAXMSGSIZE: max_part_bytes + (CURVE_BYTES if self._keys else 0),
            zmq.SNDHWM: QUEUE_MESSAGES,
            zmq.RCVHWM: QUEUE_MESSAGES,
            zmq.RECONNECT_IVL: RECONNECT_MS,
            zmq.RECONNECT_IVL_MAX: RECONNECT_MAX_MS,
            zmq.HANDSHAKE_IVL: HANDSHAKE_MS,
        }
        if address.startswith("tcp://"):  # over ipc the system tells at once that the other process is gone
            options |= KEEPALIVE if kind in BOUND else HEARTBEATS
            options |= {
                # Only where it is meant: with it a name that has both kinds of address is looked for as IPv6 alone.
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
        """Closes; what is not sent yet has `linger_seconds` to go out while the process ends, then it is dropped."""
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
            if not parts:  # of a peer in quarantine
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
        if self._handshakes and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_SECONDS
            self._look(self._handshakes)
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

    def _look(self, handshakes: Handshakes) -> None:
        """Twice a second, of sockets with keys: a client says when it is not admitted."""
        if handshakes.complaint_due():
            who = self._keys.name if self._keys else ""
            AUTHENTICATOR.say(
                f"no connection to {self._endpoint} at {self.address} as {who}: {handshakes.failed} handshakes have failed; "
                "is this key on the server's list, and is keys/public this run's? still trying"
            )

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


def wait(channels: Iterable[Channel], timeout_seconds: float) -> None:
    """Blocks until one of the channels has something to read, or the time is over."""
    poller = zmq.Poller()
    for channel in channels:
        poller.register(channel.socket, zmq.POLLIN)
    poller.poll(max(1, int(timeout_seconds * 1000)))
