"""The actors' half of the replay server: who they are, what has arrived, how much each may have under way."""

from __future__ import annotations

import time

from replay.log.journal import Journal
from replay.server.greetings import GREETING, mismatch
from replay.table.base import Table
from replay.table.inbox import Inbox, Writer
from transport.compression import chunk_wire_bytes
from transport.experience import ExperienceSpec
from transport.lifetime import say
from transport.messages import MOST_ACTORS, Ack, Credit, Greet, Hold, Insert, Refused, WriterHello, WriterWelcome
from transport.metrics import Metrics
from transport.sockets.quarantine import ODDITY
from transport.sockets.server import Server

CREDIT_SECONDS = 0.5  # how often writers are sent their credit, which shows who is gone and tells them that replay is there
SILENCE_SECONDS = 4.0  # of an actor, which sends something each second
REPORT_AGAIN_SECONDS = 60.0  # of the same actor: all steps of a simulator may be so long
MOST_INCARNATIONS = 4 * MOST_ACTORS  # of actors, that are kept
LEAST_CREDIT_CHUNKS = 32  # in judging what arrives out of order


class Writers:
    """Puts what actors send into the inbox, in order and once, and acknowledges what the table is done with.

    Everything that a sender may make it keep is bounded: what it may have under way by its credit, how many may be connected at
    once, how many incarnations are kept.
    """

    def __init__(
        self, spec: ExperienceSpec, table: Table, inbox: Inbox, journal: Journal | None, server: Server, metrics: Metrics
    ) -> None:
        self._spec, self._table, self._inbox, self._journal = spec, table, inbox, journal
        self._server, self._metrics = server, metrics
        self.known: dict[tuple[str, int], Writer] = {}  # by name and incarnation; who greeted last is last
        self.connected: dict[str, Writer] = {}  # by name: the incarnation that has credit
        self.peers: dict[bytes, Writer] = {}
        self._connections = 0
        self._forgotten = False  # some incarnation that had sent something
        self._most_pending = 0
        self._next_credit = time.monotonic() + CREDIT_SECONDS

    def on_hello(self, peer: bytes, hello: WriterHello, server_incarnation: int) -> None:
        """An actor greets: a new one, a new incarnation of one, or one that is known."""
        self._server.offence(peer, "greetings without end", GREETING)
        if reason := mismatch(self._spec, hello) or self._refusal(hello):
            self._server.send(peer, Refused(reason))
            return
        writer = self._writer_of(hello)
        if (before := self.peers.get(peer)) is not None and before is not writer:
            self._leave(before)  # a connection is one writer
        if (other := self.connected.get(hello.name)) is not None and other is not writer:
            self._leave(other)
        if before is not writer or writer.out_of_step:  # something may have been lost: it begins again where that was
            self.peers.pop(writer.peer, None)
            self._connections += 1
            writer.peer, writer.connection = peer, self._connections
            self.peers[peer] = writer
        writer.out_of_step = False
        writer.heard = time.monotonic()
        self.connected[hello.name] = writer
        self._divide_credit()
        self.share_credit_soon()  # the shares of the others are smaller now
        writer.grant(self._table.credit_bytes(writer))
        self._server.send(peer, WriterWelcome(server_incarnation, writer.connection, writer.received, writer.credit_bytes))
        self._server.send(peer, Ack(writer.inserted, self._table.policy_version))  # the one that it waits for may have been lost

    def _refusal(self, hello: WriterHello) -> str:
        """Why an actor that has the right spec is not served; empty when it is."""
        key = (hello.name, hello.incarnation)
        if self._server.quarantine.holds(key):
            return (
                f"this process of {hello.name} is in quarantine, because it sent what cannot be used: find out why, and start it "
                "again"
            )
        if len(self.connected) >= MOST_ACTORS and hello.name not in self.connected:
            return f"{hello.name} would be one actor too many: there are {MOST_ACTORS:,}"
        if key not in self.known and hello.first_sequence and self._forgotten and not self._written(*key):
            return f"{hello.name} was away for so long that replay does not know it any more: start it again"
        return ""

    def _written(self, name: str, incarnation: int) -> int:
        """The sequence below which everything of one incarnation of an actor is on disk."""
        return self._journal.next_sequence(name, incarnation) if self._journal else 0

    def _writer_of(self, hello: WriterHello) -> Writer:
        """What is known of this incarnation of an actor; from now on that is something."""
        key = (hello.name, hello.incarnation)
        writer = self.known.pop(key, None)
        if writer is None:
            # Either a new incarnation of the actor, or of this server: then what the writer still holds comes first, but for
            # what the server before this one has written down.
            first = max(hello.first_sequence, self._written(*key))
            writer = Writer(hello.name, hello.incarnation, hello.streams, b"", 0, received=first, first=first, inserted=first)
        self.known[key] = writer
        self._forget()
        return writer

    def _forget(self) -> None:
        """Of incarnations that are gone, forgets first those that never sent a chunk, then those that left longest ago."""
        while len(self.known) > MOST_INCARNATIONS:
            gone = [
                writer for writer in self.known.values() if not writer.waiting and self.connected.get(writer.name) is not writer
            ]
            if not gone[:-1]:  # the last may be the one that has just greeted
                return
            writer = next((writer for writer in gone[:-1] if writer.received == writer.first), gone[0])
            self._forgotten |= writer.received != writer.first
            del self.known[writer.name, writer.incarnation]

    def on_present(self, peer: bytes) -> None:
        """An actor has nothing to send."""
        writer = self.peers.get(peer)
        if writer is None:
            self._server.offence(peer, "no greeting", ODDITY)
            self._server.send(peer, Greet())
        else:
            writer.heard = time.monotonic()

    def on_goodbye(self, peer: bytes) -> None:
        """An actor has no more to send."""
        writer = self.peers.get(peer)
        if writer is not None:
            self._leave(writer)
            self.share_credit_soon()

    def expel(self, peer: bytes) -> None:
        """Takes nothing more from the actor at this connection, nor from the same incarnation over another."""
        writer = self.peers.get(peer)
        if writer is not None:
            self._server.quarantine.put((writer.name, writer.incarnation))
            self.on_goodbye(peer)

    def _leave(self, writer: Writer) -> None:
        """It has no credit any more. What has arrived is kept in mind, so that nothing is taken twice should it come back."""
        self.peers.pop(writer.peer, None)
        if self.connected.get(writer.name) is writer:
            del self.connected[writer.name]

    def on_insert(self, peer: bytes, message: Insert, parts: list[bytes]) -> None:
        """A chunk has arrived: it goes into the inbox when it is the next of its writer."""
        writer = self.peers.get(peer)
        if writer is not None:
            writer.heard = time.monotonic()
        if writer is None:
            self._server.offence(peer, "chunks, but no greeting", ODDITY)
            self._server.send(peer, Greet())
        elif writer.out_of_step:
            self._out_of_order(writer, "unheard")
        elif message.sequence < writer.received:
            self._out_of_order(writer, "duplicates")
            self._server.send(peer, Ack(writer.inserted, self._table.policy_version))
        elif message.sequence > writer.received:
            # Messages were lost on the way: take nothing more until the writer has greeted and begun again where they are.
            self._out_of_order(writer, "gaps")
            writer.out_of_step = True
            self._server.send(peer, Greet())
        elif writer.overdraws(self._spec.chunk_bytes):
            # No honest writer does that. It still has the chunk, and sends it again once its silence has lasted too long.
            writer.out_of_step = True
            self._metrics.count("overdrawn")
            self._server.offence(peer, "more than its credit allows")
        elif len(self._inbox.pending) >= self._most_pending:
            writer.out_of_step = True  # others have brought too much and gone
            self._metrics.count("overdrawn")
        else:
            # Parts that are too large are no chunk, but its place in the sequence is taken.
            self._inbox.put(writer, message, parts if sum(map(len, parts)) <= chunk_wire_bytes(self._spec) else [])

    def _out_of_order(self, writer: Writer, counter: str) -> None:
        """What an honest writer may do, too, with all that it has under way, when a connection breaks."""
        self._metrics.count(counter)
        credit = max(self._table.credit_chunks(writer), LEAST_CREDIT_CHUNKS)
        self._server.offence(writer.peer, f"{counter} again and again", 1 / credit)

    def acknowledge(self) -> None:
        """Answers the actors whose chunks the table is done with."""
        while self._inbox.advanced:
            writer = self._inbox.advanced.pop()
            while writer.rejected > writer.charged:
                writer.charged += 1
                if self.peers.get(writer.peer) is writer:
                    self._server.offence(writer.peer, "chunks that cannot be learned from")
            credit = self._table.credit_bytes(writer)
            # One answer for several chunks, where several have come: each answer wakes its writer.
            half = 2 * (writer.inserted - writer.acknowledged) * self._spec.chunk_bytes >= credit
            if half or not writer.waiting or self._table.holds:
                if credit != writer.credit_bytes:
                    self._send_credit(writer, credit)
                writer.acknowledged = writer.inserted
                self._server.send(writer.peer, Ack(writer.inserted, self._table.policy_version))

    def share_credit_soon(self) -> None:
        """Something has changed that credit depends on."""
        self._next_credit = 0.0

    def share_credit(self) -> None:
        """When it is time: sends every actor its share, and divides credit among those that can still be reached."""
        if time.monotonic() < self._next_credit:
            return
        self._next_credit = time.monotonic() + CREDIT_SECONDS
        self._divide_credit()
        for writer in list(self.connected.values()):
            if not self._send_credit(writer, self._table.credit_bytes(writer)):
                self._leave(writer)
                say(f"{writer.name} cannot be reached any more; it will send again whatever has not been acknowledged")
                self.share_credit_soon()  # once more, with fewer
        self._divide_credit()
        self._report_silence()

    def _report_silence(self) -> None:
        """A silent actor keeps its credit: its simulator may take so long, or the line to it be broken for now."""
        now = time.monotonic()
        silent = [writer for writer in self.connected.values() if now - writer.heard > SILENCE_SECONDS]
        self._metrics.gauge("silent_writers", len(silent))
        for writer in silent:
            if writer.silence_reported < writer.heard and now - writer.silence_reported > REPORT_AGAIN_SECONDS:
                writer.silence_reported = now
                say(f"nothing has come from {writer.name} for {now - writer.heard:.0f} s")

    def _divide_credit(self) -> None:
        """Divides credit among the actors that are connected, and limits how much may wait in all: to twice that, for it may
        have been divided anew."""
        present = list(self.connected.values())
        self._table.writers_changed(present)
        credit = sum(self._table.credit_bytes(writer) // self._spec.chunk_bytes + 1 for writer in present)
        self._most_pending = 2 * max(credit, self._inbox.room)

    def reassure(self) -> None:
        """Tells actors whose chunks wait that silence is not trouble."""
        for writer in self.connected.values():
            if writer.waiting and not writer.out_of_step:
                self._server.send(writer.peer, Hold())

    def measure(self) -> None:
        """Sets the gauges that change all the time."""
        self._metrics.gauge("queue", len(self._inbox.pending))
        self._metrics.gauge("queue_limit", sum(map(self._table.credit_chunks, self.connected.values())))

    def _send_credit(self, writer: Writer, credit_bytes: int) -> bool:
        writer.grant(credit_bytes)
        return self._server.send(writer.peer, Credit(credit_bytes))
