"""The side that others connect to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import zmq

from transport.messages import MAX_PARTS, Message, Refused, pack
from transport.run_dir import is_loopback
from transport.sockets.authenticator import AUTHENTICATOR, Handshakes
from transport.sockets.channel import MAX_PART_BYTES, QUEUE_MESSAGES, Channel
from transport.sockets.connections import hang_up
from transport.sockets.frames import FRAME_BYTES, Part, Parts
from transport.sockets.keys import Keys, KeysError, key_name, role_of
from transport.sockets.quarantine import Quarantine

REQUEST_PARTS = 64  # of a message to a server, beside those that a chunk is cut into
MOST_NAMES = 4096  # of connections, that a server keeps
_domains = itertools.count()


class Bound(Channel):
    """A socket that others connect to. With keys the authenticator serves it before it is bound, and is watched from then on."""

    def __init__(
        self,
        kind: int,
        max_part_bytes: int,
        address: str,
        keys: Keys | None,
        endpoint: str,
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
            self._domain = f"{endpoint}-{next(_domains)}"
            self.socket.setsockopt(zmq.CURVE_SERVER, 1)
            self.socket.setsockopt_string(zmq.ZAP_DOMAIN, self._domain)
            self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # or every key would be admitted while no authenticator answers
            own = self._keys
            AUTHENTICATOR.open(self._domain, lambda public: own.client_name(endpoint, public))
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"cannot bind {address}: {error.strerror}") from error
        self.address = str(self.socket.getsockopt_string(zmq.LAST_ENDPOINT))

    @property
    def handshakes_failed(self) -> int:
        """Connections that were not admitted; counted where there are keys."""
        return self._handshakes.failed if self._handshakes else 0

    def close(self, linger_seconds: float = 0) -> None:
        """Closes; the authenticator ends with the last server of the process."""
        super().close(linger_seconds)
        if self._domain:
            AUTHENTICATOR.close(self._domain)

    def _look(self, handshakes: Handshakes) -> None:
        handshakes.read()
        AUTHENTICATOR.watch()


class Server(Bound):
    """ROUTER: many peers, each known by an identity that lasts as long as its connection.

    A peer that keeps sending what cannot be used is put in quarantine: it is sent the reason once, nothing of it is read any
    more, and its connection is closed at a later message. libzmq has no call for that; but it tells the descriptor that a
    message came by.
    """

    def __init__(
        self,
        address: str,
        max_part_bytes: int = MAX_PART_BYTES,
        queue: int = QUEUE_MESSAGES,
        receive_queue: int = QUEUE_MESSAGES,
        keys: Keys | None = None,
        endpoint: str = "",
        most_bytes: int = 0,
    ) -> None:
        """Binds as `Bound` does, with at most `receive_queue` unread messages per peer. `endpoint`: the name of this socket,
        which decides whose keys may connect. An honest message has at most `most_bytes` in parts of the frame limit."""
        self.quarantine = Quarantine()
        self._most_parts = min(REQUEST_PARTS + most_bytes // FRAME_BYTES, MAX_PARTS)
        self.quarantined = 0  # peers so far
        self.unread = 0  # messages of theirs
        self.impostors = 0  # messages in another's name, or for others to send
        self._expelled: list[bytes] = []
        self._names: dict[bytes, str] = {}  # of connections: whose key they have
        super().__init__(zmq.ROUTER, max_part_bytes, address, keys, endpoint, queue, receive_queue)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)

    def authorise(self, peer: bytes, role: str, name: str = "") -> str:
        """Empty when a peer may speak for this role (and, if it gives one, in this name); else why not, and it is counted.

        A peer is the owner of its key. Without keys only this user can connect, and every peer is believed.
        """
        if self._keys is None:
            return ""
        known = self._names.get(peer, "")
        if role_of(known) == role and (not name or key_name(name) == known):
            return ""
        reason = f"the owner of the key of {known or 'nobody'} may not speak for {(name or role)!r}"
        if not self.impostors:
            AUTHENTICATOR.say(f"refused, and so will others be: {reason}")
        self.impostors += 1
        self.offence(peer, "what is for others to say")
        return reason

    def offence(self, peer: bytes, reason: str, weight: float = 1.0) -> None:
        """Counts against a peer something that no honest one would send, and sends it the reason if that was once too often."""
        if self.quarantine.offence(peer, weight):
            self.quarantined += 1
            self.send(peer, Refused(f"in quarantine, for sending again and again what cannot be used: {reason}"))
            self._expelled.append(peer)

    def expelled(self) -> list[bytes]:
        """Peers that have been put in quarantine since the last call."""
        expelled, self._expelled = self._expelled, []
        return expelled

    def _on_malformed(self, envelope: Parts, reason: str) -> None:
        super()._on_malformed(envelope, reason)
        if envelope:
            self.offence(envelope[0], "no message of this protocol")
            self.quarantine.write_off(envelope[0])

    def _take_parts(self) -> Parts:
        """Empty for a message of a peer in quarantine.

        Notes whose key a connection has, once for each: every message carries the authenticator's answer along.
        """
        if self._keys is None and not self.quarantine.anyone:
            return self._few(super()._take_parts())
        first = self.socket.recv(zmq.DONTWAIT, copy=False)
        parts = [first.bytes, *self.socket.recv_multipart(zmq.DONTWAIT)]  # a message arrives whole
        peer = parts[0]
        if self.quarantine.holds(peer):
            self.unread += 1
            if self.quarantine.notified(peer):
                hang_up(int(first.get(zmq.SRCFD)))
            return []
        if self._keys and peer not in self._names:
            if len(self._names) >= MOST_NAMES:
                del self._names[next(iter(self._names))]  # the oldest; asked for again should it still be there
            self._names[peer] = str(first.get("User-Id"))
        return self._few(parts)

    def _few(self, parts: Parts) -> Parts:
        """The parts; none where there are so many that to read them was an attack. Its sender is not sent the reason."""
        if len(parts) <= self._most_parts:
            return parts
        self.malformed += 1
        if self.quarantine.put(parts[0], notified=True):
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
