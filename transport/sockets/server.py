"""The listening side of a link: many peers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq

from transport.messages.codec import pack
from transport.messages.fields import MAX_PARTS, Message
from transport.messages.replay import Refused
from transport.sockets.authenticator import AUTHENTICATOR, Handshakes
from transport.sockets.channel import FRAME_BYTES, MAX_PART_BYTES, QUEUE_MESSAGES, UNREADABLE_PER_CALL, Channel, Part, Parts
from transport.sockets.keys import Keys, KeysError, key_name, role_of
from transport.sockets.limits import hang_up
from transport.sockets.quarantine import Quarantine
from transport.system import is_loopback

REQUEST_PARTS = 64  # limit of a message to a server, besides the pieces of a chunk
LOOK_SECONDS, LOOK_AGAIN_SECONDS = 1.0, 60.0  # at the file of an ipc socket; after an error
MOST_NAMES = 4096  # connections whose owner a server remembers
SUBSCRIBE_TO_ALL = b"\x01"  # a subscription message: 1, then the topic, which is empty here
REQUEST_BYTES = 4096  # limit of a part; a handshake with keys fits
LIST_SECONDS = 0.05  # between two looks whether a key has been taken from the list
_domains = itertools.count()


class Bound(Channel):
    """A socket that clients connect to. With keys the authenticator decides which clients are admitted."""

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
        """Binds. `queue`: the limit of unsent messages per peer; `receive_queue`: of unread messages. Raises OSError if it cannot
        bind, KeysError if other machines can reach the address and there are no keys."""
        if (
            keys is None
            and address.startswith("tcp://")
            and not is_loopback(address.removeprefix("tcp://").rpartition(":")[0].strip("[]"))
        ):
            raise KeysError(f"other machines can reach {address}, which needs keys; make them with `headrace keys`")
        super().__init__(kind, max_part_bytes, address, keys)
        self.socket.setsockopt(zmq.SNDHWM, queue)
        self.socket.setsockopt(zmq.RCVHWM, receive_queue)
        self._domain = ""
        if self._keys and keys is not None:
            self._domain = f"{endpoint}-{next(_domains)}"
            self.socket.setsockopt(zmq.CURVE_SERVER, 1)
            self.socket.setsockopt_string(zmq.ZAP_DOMAIN, self._domain)
            self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # otherwise every key is admitted while no authenticator answers
            own = keys
            AUTHENTICATOR.open(self._domain, lambda public: own.client_name(endpoint, public))
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"cannot bind {address}: {error.strerror}") from error
        self.address = str(self.socket.getsockopt_string(zmq.LAST_ENDPOINT))
        self._path = Path(address.removeprefix("ipc://")) if address.startswith("ipc://") else None
        self._next_look = time.monotonic() + LOOK_SECONDS

    def keep_reachable(self) -> None:
        """Binds again where the file of an ipc socket has been deleted, by a cleaner of temporary files for example. Connections
        that exist are not affected; without the file no new one could be made. Call it often: it looks once a second."""
        if self._path is None or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        try:
            self._path.stat()
            return
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:  # it cannot be looked at now, and may be there
            return
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self.socket.bind(self.address)
        except (OSError, zmq.ZMQError) as error:
            AUTHENTICATOR.say(f"the socket {self._path} was deleted and cannot be made again ({error.strerror})")
            self._next_look = time.monotonic() + LOOK_AGAIN_SECONDS
        else:
            AUTHENTICATOR.say(f"the socket {self._path} was deleted; made it again")

    @property
    def handshakes_failed(self) -> int:
        """Connections that were not admitted; 0 without keys."""
        return self._handshakes.failed if self._handshakes else 0

    def close(self, linger_seconds: float = 0) -> None:
        """Closes as Channel does; the authenticator ends with the last server of the process."""
        super().close(linger_seconds)
        if self._domain:
            AUTHENTICATOR.close(self._domain)

    def _check_handshakes(self, handshakes: Handshakes) -> None:
        handshakes.read()
        AUTHENTICATOR.watch()


class Announcer(Bound):
    """An XPUB socket: one header to all listeners. A slow listener misses announcements and never slows the announcer."""

    def __init__(self, address: str, keys: Keys | None = None, endpoint: str = "") -> None:
        super().__init__(zmq.XPUB, REQUEST_BYTES, address, keys, endpoint, queue=2)
        self.socket.setsockopt(zmq.XPUB_MANUAL, 1)  # otherwise a peer could fill the memory with subscriptions to new topics

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


class Server(Bound):
    """A ROUTER socket: many peers, each with an identity that is valid for one connection.

    A peer that keeps sending invalid messages is put in quarantine: it is sent the reason once, its messages are not read any
    more, and at a later message its connection is closed. libzmq has no call for that, but it gives the descriptor by which a
    message arrived. A peer whose key has been taken from the list, or replaced there, is put in quarantine likewise.
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
        """Binds as `Bound` does. `endpoint`: the name of this socket, which decides which keys may connect. `most_bytes`: the
        most that one message of an honest peer has in parts of the frame limit."""
        self.quarantine = Quarantine()
        self._most_parts = min(REQUEST_PARTS + most_bytes // FRAME_BYTES, MAX_PARTS)
        self.quarantined = 0  # peers put in quarantine so far
        self.unread = 0  # messages of such peers
        self.impostors = 0  # messages in the name of another process, or not allowed for the sender's role
        self._expelled: list[bytes] = []
        self._owners: dict[bytes, tuple[str, str]] = {}  # by connection: the name and the public key of its owner
        self._own_keys, self._next_list = keys, 0.0
        self._listed: Mapping[str, str] = {}
        super().__init__(zmq.ROUTER, max_part_bytes, address, keys, endpoint, queue, receive_queue)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)

    def authorise(self, peer: bytes, role: str, name: str = "") -> str:
        """Checks that a peer may send messages of this role and, if given, in this name. Returns "" or the reason why not.

        The name of the peer's key decides. Without keys only this user can connect, and every peer is authorised.
        """
        if self._keys is None:
            return ""
        owner = self.owner(peer)
        if role_of(owner) == role and (not name or key_name(name) == owner):
            return ""
        reason = f"the key of {owner or 'no known process'} does not authorise messages of {(name or role)!r}"
        if not self.impostors:
            AUTHENTICATOR.say(f"refused a message (further ones are only counted): {reason}")
        self.impostors += 1
        self.offence(peer, "messages that its key does not authorise")
        return reason

    def owner(self, peer: bytes) -> str:
        """The name of the owner of the key that a peer has connected with; empty without keys."""
        return self._owners.get(peer, ("", ""))[0]

    def offence(self, peer: bytes, reason: str, weight: float = 1.0) -> None:
        """Counts an offence of a peer. If that puts it in quarantine, sends it the reason."""
        if self.quarantine.offence(peer, weight):
            self.quarantined += 1
            self.send(peer, Refused(f"in quarantine after too many invalid messages, the last: {reason}"))
            self._expelled.append(peer)

    def expelled(self) -> list[bytes]:
        """The peers that were put in quarantine since the last call, those with replaced keys too."""
        expelled, self._expelled = self._expelled, []
        return expelled

    def _on_malformed(self, envelope: Parts, reason: str) -> None:
        super()._on_malformed(envelope, reason)
        if envelope:
            self.offence(envelope[0], "not a message of this protocol")
            self.quarantine.skip_notice(envelope[0])

    def _take_parts(self) -> Parts:
        """Empty for a message of a peer in quarantine.

        Remembers the owner of each connection's key; libzmq attaches the authenticator's answer to every message.
        """
        if self._keys is None and not self.quarantine:
            return self._limited(super()._take_parts())
        self._check_list()
        first = self.socket.recv(zmq.DONTWAIT, copy=False)
        parts = [first.bytes, *self.socket.recv_multipart(zmq.DONTWAIT)]  # libzmq delivers all parts of a message together
        peer = parts[0]
        if peer in self.quarantine:
            self.unread += 1
            if self.quarantine.notified(peer):
                hang_up(int(first.get(zmq.SRCFD)))
            return []
        if self._keys and peer not in self._owners:
            if len(self._owners) >= MOST_NAMES:
                del self._owners[next(iter(self._owners))]  # the oldest; its next message brings the name again
            name, _, public = str(first.get("User-Id")).partition(" ")
            self._owners[peer] = name, public
            if self._listed.get(name) != public:  # the list has changed since the last look at it
                self._next_list = 0.0
                self._check_list()
                if self._listed.get(name) != public:
                    self._fence(peer)
                    return []
        return self._limited(parts)

    def _check_list(self) -> None:
        """Ends the connections of keys that are no longer on the list, soon after it has changed."""
        if self._own_keys is None or self._keys is None or time.monotonic() < self._next_list:
            return
        self._next_list = time.monotonic() + LIST_SECONDS
        try:
            listed = self._own_keys.listed()
        except KeysError:  # the authenticator says so; what is connected goes on
            return
        if listed is not self._listed:
            self._listed = listed
            for peer in [peer for peer, (name, public) in self._owners.items() if listed.get(name) != public]:
                self._fence(peer)

    def _fence(self, peer: bytes) -> None:
        """Reads nothing more of a peer whose key has been replaced."""
        name, _ = self._owners[peer]
        if self.quarantine.put(peer):
            self.send(
                peer, Refused(f"the key of {name} has been replaced or taken from the list: another process has its name now")
            )
            self._expelled.append(peer)

    def _limited(self, parts: Parts) -> Parts:
        """The parts; empty if there are too many. The sender is then in quarantine at once and is not sent the reason."""
        if len(parts) <= self._most_parts:
            return parts
        self.malformed += 1
        if self.quarantine.put(parts[0], notified=True):
            self.quarantined += 1
            self._expelled.append(parts[0])
        return []

    def receive(self, timeout_seconds: float = 0) -> tuple[bytes, Any, Parts] | None:
        """The next valid message as (peer, message, raw parts), or None. Malformed ones are counted and dropped."""
        self.keep_reachable()
        found = self._receive_readable(timeout_seconds, envelope=1)
        return (found[0][0], found[1], found[2]) if found else None

    def send(self, peer: bytes, message: Message, parts: Sequence[Part] = ()) -> bool:
        """Sends without waiting; False if the peer is gone or its queue is full."""
        return self._send_parts([peer, pack(message), *parts])
