"""The supervisor's socket. Processes and hosts report on it and get orders; commands such as `headrace down` send requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import structs

from transport.lifetime import GOODBYE_SECONDS
from transport.messages.control import Look, Order, OrderOutcome, Progress, Scale, Scaling, Seen, Steer, Stop, Stopping
from transport.messages.fields import MAX_HEADER_BYTES, Message
from transport.messages.hosts import Enrol, HostHello, Said
from transport.messages.replay import Refused
from transport.metrics import finite
from transport.run_dir import RunDir
from transport.sockets.keys import HOST, OPERATOR, TICKET, role_of
from transport.sockets.server import Server

MESSAGES_PER_TURN = 4096  # of all processes
ACTOR = "actor"
REPORTING = ("replay", "learner", ACTOR, "evaluator")  # roles
HostMessage = Enrol | HostHello | Said  # of a ticket or a host
STALE = 0.1  # weight of the offence: a process that is being replaced may still report


class ControlCallbacks(Protocol):
    """Callbacks of the control socket."""

    def is_current(self, progress: Progress) -> bool:
        """True for a report of a process of this run, in its present incarnation."""

    def on_progress(self, progress: Progress) -> None:
        """Takes a report of a process of this run."""

    def on_remote_progress(self, progress: Progress) -> Message | None:
        """Takes a report of a process that was not started here, and answers. Its key says that the name is its own."""

    def scale(self, actors: int) -> Scaling | Stopping:
        """Changes the number of actors."""

    def order(self, order: Order) -> OrderOutcome:
        """Carries out an order. The outcome of one that comes again is that of the first."""

    def look(self, peer: bytes, look: Look) -> OrderOutcome | None:
        """Has an actor show what it sees, which goes to this operator. Returns why it cannot; None if it has been asked."""

    def steer(self, peer: bytes, steer: Steer) -> OrderOutcome | None:
        """Has an actor do as a person presses, who gets what it shows then. Returns why it cannot; None if it has been told."""

    def seen(self, seen: Seen, parts: Sequence[bytes]) -> None:
        """Takes what an actor shows."""

    def stop(self, reason: str) -> None:
        """Begins the stop of the run."""

    def say(self, text: str) -> None:
        """A line of the supervisor in the log."""


class HostCallbacks(Protocol):
    """Callbacks of the control socket for other machines. They raise OSError where the list of keys cannot be changed."""

    def enrol(self, ticket: str, message: Enrol) -> Message | None:
        """Answers the owner of a ticket; None where it has to ask again."""

    def hello(self, message: HostHello) -> Message:
        """Takes the state of a host, and answers."""

    def said(self, host_name: str, name: str, lines: Sequence[str]) -> None:
        """Takes lines that a process on a host has printed."""


class Control:
    """Receives messages, checks their senders, and passes them on."""

    def __init__(self, run_dir: RunDir, callbacks: ControlCallbacks) -> None:
        """Binds. Raises OSError, KeysError."""
        self._callbacks = callbacks
        self.hosts: HostCallbacks | None = None
        self._peers: dict[str, bytes] = {}  # by the name of the process or host
        keys = run_dir.keys("supervisor")
        self.has_keys = keys is not None
        self._server = Server(run_dir.bind_address("supervisor"), MAX_HEADER_BYTES, keys=keys, endpoint="supervisor")
        self.address = self._server.address
        run_dir.write_endpoint("supervisor", self.address)

    @property
    def names(self) -> list[str]:
        """The processes and hosts that have reported."""
        return list(self._peers)

    def send(self, name: str, message: Message, parts: Sequence[bytes] = ()) -> bool:
        """Sends to a process of the run or a host. False where it has not reported yet, so that its address is unknown."""
        peer = self._peers.get(name)
        return peer is not None and self._server.send(peer, message, parts)

    def reply(self, peer: bytes, message: Message, parts: Sequence[bytes] = ()) -> bool:
        """Sends to an operator. False if it is gone."""
        return self._server.send(peer, message, parts)

    def forget(self, name: str) -> None:
        """Drops the address of a process: its next incarnation has another connection."""
        self._peers.pop(name, None)

    def listen(self, timeout_seconds: float) -> None:
        """Handles what has arrived. Waits at most `timeout_seconds` for the first message."""
        self._server.expelled()  # nothing is kept of them here
        for _ in range(MESSAGES_PER_TURN):
            arrived = self._server.receive(timeout_seconds)
            if arrived is None:
                return
            timeout_seconds = 0
            self._handle(*arrived)

    def close(self) -> None:
        self._server.close(GOODBYE_SECONDS)

    def _handle(self, peer: bytes, message: object, parts: Sequence[bytes]) -> None:
        if isinstance(message, Progress):
            self._report(peer, message)
        elif isinstance(message, HostMessage) and self.has_keys and self.hosts is not None:
            self._host(peer, message, self.hosts)
        elif isinstance(message, Scale | Order | Look | Steer | Stop) and (reason := self._server.authorise(peer, OPERATOR)):
            self._server.send(peer, Refused(reason))
        elif isinstance(message, Scale):
            self._server.send(peer, self._callbacks.scale(message.actors))
        elif isinstance(message, Order):
            self._server.send(peer, self._callbacks.order(message))
        elif isinstance(message, Look):
            if (outcome := self._callbacks.look(peer, message)) is not None:
                self._server.send(peer, outcome)
        elif isinstance(message, Steer):
            if (outcome := self._callbacks.steer(peer, message)) is not None:
                self._server.send(peer, outcome)
        elif isinstance(message, Seen):
            if not self._server.authorise(peer, ACTOR, message.actor):
                self._callbacks.seen(message, parts)
        elif isinstance(message, Stop):
            self._server.send(peer, Stopping())
            self._callbacks.stop(message.reason)
        else:
            self._server.offence(peer, "messages that are not meant for the supervisor")

    def _host(self, peer: bytes, message: HostMessage, hosts: HostCallbacks) -> None:
        """Handles what a ticket or a host sends. Its key says which one it is."""
        role, name = (TICKET, "") if isinstance(message, Enrol) else (HOST, _host_name(message))
        if self._server.authorise(peer, role, name):
            return
        try:
            if isinstance(message, Enrol):
                if (answer := hosts.enrol(self._server.owner(peer), message)) is not None:
                    self._server.send(peer, answer)
            elif isinstance(message, HostHello):
                self._peers[message.name] = peer
                self._server.send(peer, hosts.hello(message))
            else:
                hosts.said(message.host, message.name, message.lines)
        except OSError as error:  # without an answer the message is sent again
            self._callbacks.say(f"alarm: {error}")

    def _report(self, peer: bytes, progress: Progress) -> None:
        role = role_of(progress.name)
        if self._server.authorise(peer, role if role in REPORTING else "", progress.name):
            return
        report = structs.replace(progress, record=finite(progress.record))
        if self._callbacks.is_current(report):
            self._peers[report.name] = peer
            self._callbacks.on_progress(report)
        elif self.has_keys:
            if (answer := self._callbacks.on_remote_progress(report)) is not None:
                self._server.send(peer, answer)
        else:
            self._server.offence(peer, "progress of a process that is not of this run", STALE)


def _host_name(message: HostHello | Said) -> str:
    return message.name if isinstance(message, HostHello) else message.host
