"""The supervisor's socket. Processes report on it and receive orders; commands such as `headrace down` send requests."""

from __future__ import annotations

from typing import Protocol

from msgspec import structs

from transport.messages import MAX_HEADER_BYTES, Message, Progress, Refused, Scale, Scaling, Stop, Stopping
from transport.metrics import finite
from transport.run_dir import RunDir
from transport.sockets.keys import OPERATOR, role_of
from transport.sockets.server import Server

MESSAGES_PER_TURN = 4096  # of all processes
STALE = 0.1  # weight of the offence: a process that is being replaced may still report


class Run(Protocol):
    """What the socket calls in the run."""

    def knows(self, progress: Progress) -> bool:
        """Whether the report is of a process of this run, in its present incarnation."""

    def heard(self, progress: Progress) -> None:
        """Takes a report of a process of this run."""

    def heard_remote(self, progress: Progress) -> None:
        """Takes a report of a process that was not started here. Its key says that the name is its own."""

    def scale(self, actors: int) -> Scaling | Stopping:
        """Changes the number of actors."""

    def stop(self, reason: str) -> None:
        """Begins the stop of the run."""


class Control:
    """Receives messages, checks their senders, and passes them on."""

    def __init__(self, run_dir: RunDir, run: Run) -> None:
        """Binds. Raises OSError, KeysError."""
        self._run = run
        self._peers: dict[str, bytes] = {}  # by the process's name
        keys = run_dir.keys("supervisor")
        self.has_keys = keys is not None
        self._server = Server(run_dir.bind_address("supervisor"), MAX_HEADER_BYTES, keys=keys, endpoint="supervisor")
        self.address = self._server.address
        run_dir.write_endpoint("supervisor", self.address)

    @property
    def names(self) -> list[str]:
        """The processes that have reported."""
        return list(self._peers)

    def send(self, name: str, message: Message) -> bool:
        """Sends to a process of the run. False where it has not reported yet, so that its address is unknown."""
        peer = self._peers.get(name)
        return peer is not None and self._server.send(peer, message)

    def forget(self, name: str) -> None:
        """Drops the address of a process: its next incarnation has another connection."""
        self._peers.pop(name, None)

    def listen(self, timeout_seconds: float) -> None:
        """Handles what has arrived. Waits at most `timeout_seconds` for the first message."""
        for _ in range(MESSAGES_PER_TURN):
            arrived = self._server.receive(timeout_seconds)
            if arrived is None:
                return
            timeout_seconds = 0
            self._handle(arrived[0], arrived[1])

    def close(self) -> None:
        self._server.close()

    def _handle(self, peer: bytes, message: object) -> None:
        if isinstance(message, Progress):
            self._report(peer, message)
        elif isinstance(message, Scale | Stop) and (reason := self._server.authorise(peer, OPERATOR)):
            self._server.send(peer, Refused(reason))
        elif isinstance(message, Scale):
            self._server.send(peer, self._run.scale(message.actors))
        elif isinstance(message, Stop):
            self._server.send(peer, Stopping())
            self._run.stop(message.reason)
        else:
            self._server.offence(peer, "messages that are not meant for the supervisor")

    def _report(self, peer: bytes, progress: Progress) -> None:
        if self._server.authorise(peer, role_of(progress.name), progress.name):
            return
        if self._run.knows(progress):
            self._peers[progress.name] = peer
            self._run.heard(structs.replace(progress, record=finite(progress.record)))
        elif self.has_keys:
            self._run.heard_remote(structs.replace(progress, record=finite(progress.record)))
        else:
            self._server.offence(peer, "progress of a process that is not of this run", STALE)
