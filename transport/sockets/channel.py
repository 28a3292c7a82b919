"""Sockets: the only file that knows ZeroMQ.

Every socket closes without lingering (what matters is acknowledged by the layer above), has a limit on the size of a part, and
survives the restart of its peer. Queues are bounded by credit in the layer above; the high-water marks are a backstop.

With keys (transport/sockets/keys.py) a TCP socket speaks CURVE: everything is encrypted, the client knows the server
by its key, and a
server lets nobody in but those whom the gate (transport/sockets/authenticator.py) finds on its list. Over ipc the
folder's mode does that.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from typing import Any

import zmq

from transport.messages import MAX_HEADER_BYTES, MAX_PARTS, MalformedMessage, Message, Refused, pack, unpack
from transport.run_dir import is_loopback
from transport.sockets.authenticator import GATE, LOOK_SECONDS, Handshakes
from transport.sockets.connections import hang_up
from transport.sockets.keys import Keys, KeysError, key_name, role_of
from transport.sockets.quarantine import Conduct

MAX_PART_BYTES = 64 * 1024 * 1024
FRAME_BYTES = 64 * 1024  # larger payloads are cut to this, so that heartbeats pass between the pieces even at 40 kB/s
QUEUE_MESSAGES = 1000
RECONNECT_MS, RECONNECT_MAX_MS = 50, 2000
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 1000, 3000  # of silence; a part must not take so long to arrive
CONNECT_MS, HANDSHAKE_MS = 2000, 5000  # the system would wait longer and longer before it tries again
UNACKNOWLEDGED_MS = 20_000  # that TCP sends again before it gives a connection up; Linux's own patience is a quarter of an hour
BACKLOG = 128  # connections that may wait to be accepted
CURVE_BYTES = 64  # more than what encryption adds to a part
MOST_NAMES = 4096  # of connections, that a server remembers
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
REQUEST_PARTS = 64  # of a message to a server, beside those that a chunk is cut into
REQUEST_BYTES = 4096  # of a part sent to who only answers questions; a handshake with keys fits

Parts = list[bytes]
Shared = zmq.Frame
Part = bytes | memoryview | Shared
Arrival = tuple[Any, Parts]
_domains = itertools.count()


def _context() -> zmq.Context[zmq.Socket[bytes]]:
    return zmq.Context.instance()


def piece_bytes(payload_bytes: int) -> int:
    """What `cut` cuts a payload of that size into, at most: the frame limit, or more where there would be too many pieces."""
    return max(FRAME_BYTES, payload_bytes // (MAX_PARTS // 2))


def cut(payload: bytes | memoryview) -> list[memoryview]:
    """Cuts a payload into parts."""
    view = memoryview(payload).cast("B")
    size = piece_bytes(len(view))
    return [view[start : start + size] for start in range(0, len(view), size)]


class Channel:
    """What all sockets share: limits, counters, a way to be waited for."""

    def __init__(self, kind: int, max_part_bytes: int, address: str, keys: Keys | None) -> None:
        """Makes the socket and sets every option before it is bound or connected. Keys are for TCP alone."""
        self.socket = _context().socket(kind)
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

    def _connect(self, address: str, door: str) -> None:
        self.address, self._door = address, door
        if self._keys:
            self.socket.setsockopt_string(zmq.CURVE_SERVERKEY, self._keys.server(door))
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
        """Twice a second, of sockets with keys: a client says when it is not let in."""
        if handshakes.complaint_due():
            who = self._keys.name if self._keys else ""
            GATE.say(
                f"no connection to {self._door} at {self.address} as {who}: {handshakes.failed} handshakes have failed; "
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


class Bound(Channel):
    """A socket that others connect to. With keys its gate stands before it is bound and is watched from then on."""

    def __init__(
        self,
        kind: int,
        max_part_bytes: int,
        address: str,
        keys: Keys | None,
        door: str,
        queue: int,
        receive_queue: int = QUEUE_MESSAGES,
    ) -> None:
        """Binds; holds at most `queue` unsent messages per peer. Raises OSError naming the address when it cannot be bound,
        KeysError for an address that others can reach without keys."""
        if (
            keys is None
            and address.startswith("tcp://")
            and not is_loopback(address.removeprefix("tcp://").rpartition(":")[0].strip("[]"))
        ):
            raise KeysError(f"{address} can be reached from other machines: that needs keys; make them with `headrace keys`")
        super().__init__(kind, max_part_bytes, address, keys)
        self.socket.setsockopt(zmq.SNDHWM, queue)
        self.socket.setsockopt(zmq.RCVHWM, receive_queue)
        self._domain = ""
        if self._keys:
            self._domain = f"{door}-{next(_domains)}"
            self.socket.setsockopt(zmq.CURVE_SERVER, 1)
            self.socket.setsockopt_string(zmq.ZAP_DOMAIN, self._domain)
            self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # or everyone would be let in while no gate answers
            own = self._keys
            GATE.open(self._domain, lambda public: own.guest(door, public))
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"cannot bind {address}: {error.strerror}") from error
        self.address = str(self.socket.getsockopt_string(zmq.LAST_ENDPOINT))

    @property
    def handshakes_failed(self) -> int:
        """Connections that were not let in; counted where there are keys."""
        return self._handshakes.failed if self._handshakes else 0

    def close(self, linger_seconds: float = 0) -> None:
        """Closes; the gate goes with the last server of the process."""
        super().close(linger_seconds)
        if self._domain:
            GATE.close(self._domain)

    def _look(self, handshakes: Handshakes) -> None:
        handshakes.read()
        GATE.watch()


class Server(Bound):
    """ROUTER: many peers, each known by an identity that lasts as long as its connection.

    A peer that keeps sending what cannot be used is put in quarantine: it is told so once, nothing of it is read any more, and
    its connection is closed at a later message. libzmq has no call for that; but it says which descriptor a message came by.
    """

    def __init__(
        self,
        address: str,
        max_part_bytes: int = MAX_PART_BYTES,
        queue: int = QUEUE_MESSAGES,
        receive_queue: int = QUEUE_MESSAGES,
        keys: Keys | None = None,
        door: str = "",
        most_bytes: int = 0,
    ) -> None:
        """Binds as `Bound` does, with at most `receive_queue` unread messages per peer; `door`: the name of this socket, which
        decides whose keys may connect. An honest message has at most `most_bytes` in parts of the frame limit."""
        self.conduct = Conduct()
        self._most_parts = min(REQUEST_PARTS + most_bytes // FRAME_BYTES, MAX_PARTS)
        self.quarantined = 0  # peers so far
        self.unread = 0  # messages of theirs
        self.impostors = 0  # messages in another's name, or for others to send
        self._expelled: list[bytes] = []
        self._names: dict[bytes, str] = {}  # of connections: whose key they have
        super().__init__(zmq.ROUTER, max_part_bytes, address, keys, door, queue, receive_queue)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)

    def vouch(self, peer: bytes, role: str, name: str = "") -> str:
        """Empty when a peer may speak for this role (and, if it gives one, in this name); else why not, and it is counted.

        A peer is whom its key belongs to. Without keys nobody but this user can connect, and everyone is taken at their word.
        """
        if self._keys is None:
            return ""
        known = self._names.get(peer, "")
        if role_of(known) == role and (not name or key_name(name) == known):
            return ""
        reason = f"who has the key of {known or 'nobody'} may not speak for {(name or role)!r}"
        if not self.impostors:
            GATE.say(f"refused, and so will others be: {reason}")
        self.impostors += 1
        self.offence(peer, "what is for others to say")
        return reason

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

    def _take_parts(self) -> Parts:
        """Empty for a message of somebody in quarantine.

        Notes whose key a connection has, once for each: every message carries the gate's word along.
        """
        if self._keys is None and not self.conduct.anyone:
            return self._few(super()._take_parts())
        first = self.socket.recv(zmq.DONTWAIT, copy=False)
        parts = [first.bytes, *self.socket.recv_multipart(zmq.DONTWAIT)]  # a message arrives whole
        peer = parts[0]
        if self.conduct.quarantined(peer):
            self.unread += 1
            if self.conduct.told(peer):
                hang_up(int(first.get(zmq.SRCFD)))
            return []
        if self._keys and peer not in self._names:
            if len(self._names) >= MOST_NAMES:
                del self._names[next(iter(self._names))]  # the oldest; asked for again should it still be there
            self._names[peer] = str(first.get("User-Id"))
        return self._few(parts)

    def _few(self, parts: Parts) -> Parts:
        """The parts; none where there are so many that to read them was an attack. Its sender is not even told."""
        if len(parts) <= self._most_parts:
            return parts
        self.malformed += 1
        if self.conduct.quarantine(parts[0], told=True):
            self.quarantined += 1
            self._expelled.append(parts[0])
        return []

    def receive(self, timeout_seconds: float = 0) -> tuple[bytes, Any, Parts] | None:
        """The next well-formed message as (peer, message, raw parts), or None. Malformed ones are counted and dropped."""
        found = self._receive_readable(timeout_seconds, envelope=1)
        return (found[0][0], found[1], found[2]) if found else None

    def send(self, peer: bytes, message: Message, parts: Sequence[Part] = ()) -> bool:
        """Sends without waiting; False when the peer is gone or its queue is full."""
        return self._send_parts([peer, pack(message), *parts])


class Client(Channel):
    """Connected (DEALER): one peer, which may come, go and come back."""

    def __init__(self, address: str, max_part_bytes: int = MAX_PART_BYTES, keys: Keys | None = None, door: str = "") -> None:
        """Connects in the background to the socket called `door`; the server need not be there yet. Raises KeysError."""
        super().__init__(zmq.DEALER, max_part_bytes, address, keys)
        self._connect(address, door)

    def receive(self, timeout_seconds: float = 0) -> Arrival | None:
        """The next well-formed message as (message, raw parts), or None."""
        found = self._receive_readable(timeout_seconds, envelope=0)
        return (found[1], found[2]) if found else None

    def send(self, message: Message, parts: Sequence[Part] = ()) -> bool:
        """Sends without waiting; False when the queue is full."""
        return self._send_parts([pack(message), *parts])


class Announcer(Bound):
    """Bound (XPUB): one header to whoever listens. A slow listener misses announcements; it never slows this side."""

    def __init__(self, address: str, keys: Keys | None = None, door: str = "") -> None:
        """Binds as `Bound` does."""
        super().__init__(zmq.XPUB, REQUEST_BYTES, address, keys, door, queue=2)
        self.socket.setsockopt(zmq.XPUB_MANUAL, 1)  # or whoever subscribes to ever new topics could fill the memory

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

    def __init__(self, address: str, keys: Keys | None = None, door: str = "") -> None:
        """Connects in the background. Raises KeysError."""
        super().__init__(zmq.SUB, MAX_HEADER_BYTES, address, keys)
        self.socket.setsockopt(zmq.CONFLATE, 1)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._connect(address, door)

    def newest(self) -> Any | None:
        """The newest announcement since the last call, or None."""
        found = self._receive_readable(0, envelope=0)
        return found[1] if found else None


def shared(parts: Iterable[bytes | memoryview]) -> list[Shared]:
    """Parts that go to many peers and are held in memory once."""
    return [Shared(part, copy=False) for part in parts]


def wait(channels: Iterable[Channel], timeout_seconds: float) -> None:
    """Blocks until one of the channels has something to read, or the time is over."""
    poller = zmq.Poller()
    for channel in channels:
        poller.register(channel.socket, zmq.POLLIN)
    poller.poll(max(1, int(timeout_seconds * 1000)))
