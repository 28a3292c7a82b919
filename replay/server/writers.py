"""The replay server's side of the actors: greetings, arriving chunks, credit, acknowledgements."""

from __future__ import annotations

import time

from replay.log.journal import Journal
from replay.shards import WHOLE, Shard, shard_of
from replay.table.base import Table
from replay.table.inbox import Inbox, Writer
from transport.compression import chunk_wire_bytes
from transport.experience import ExperienceSpec
from transport.messages.fields import FAULT_LETTERS, MOST_ACTORS, printable
from transport.messages.replay import Ack, Credit, Greet, Hold, Insert, Refused, WriterHello, WriterWelcome
from transport.metrics import Metrics
from transport.sockets.quarantine import ODDITY
from transport.sockets.server import Server
from transport.text import say

CREDIT_SECONDS = 0.5  # interval of Credit messages, which show writers that replay is alive, and replay which writers are gone
SILENCE_SECONDS = 4.0  # an actor sends something each second; after this time a line reports its silence
REPORT_AGAIN_SECONDS = 60.0  # before the silence of the same actor is reported again: a simulator's steps may be that long
MOST_INCARNATIONS = 4 * MOST_ACTORS  # of which a record is kept
LEAST_CREDIT_CHUNKS = 32  # minimum by which chunks that arrive out of order are judged


class Writers:
    """Puts arriving chunks into the inbox, in order and once, and acknowledges the chunks that the table has finished.

    Everything that a sender can make the server keep is limited: outstanding chunks by the credit, connected actors, and records
    of incarnations.
    """

    def __init__(
        self,
        spec: ExperienceSpec,
        table: Table,
        inbox: Inbox,
        journal: Journal | None,
        server: Server,
        metrics: Metrics,
        shard: Shard = WHOLE,
    ) -> None:
        self._shard = shard
        self._spec, self._table, self._inbox, self._journal = spec, table, inbox, journal
        self._server, self._metrics = server, metrics
        self.known: dict[tuple[str, int], Writer] = {}  # by name and incarnation, in the order of their last greetings
        self.connected: dict[str, Writer] = {}  # by name: the incarnation that has credit
        self.peers: dict[bytes, Writer] = {}
        self._connections = 0
        self._forgotten = False  # whether the record of an incarnation that had sent chunks was deleted
        self._most_pending = 0
        self.credit_changed = False  # actors or learners have come or gone: it is divided again in this turn
        self._next_credit = time.monotonic() + CREDIT_SECONDS

    def on_hello(self, peer: bytes, hello: WriterHello, server_incarnation: int) -> None:
        """Handles the greeting of a new actor, a new incarnation, or a known one."""
        if reason := self._refusal(hello):
            self._server.send(peer, Refused(reason))
            return
        writer = self._writer_of(hello)
        if (before := self.peers.get(peer)) is not None and before is not writer:
            self._leave(before)  # a connection has one writer
        if (other := self.connected.get(hello.name)) is not None and other is not writer:
            self._leave(other)
        if before is not writer or writer.out_of_step:  # chunks may have been lost: the writer sends again from there on
            self.peers.pop(writer.peer, None)
            self._connections += 1
            writer.peer, writer.connection = peer, self._connections
            self.peers[peer] = writer
        writer.out_of_step = False
        writer.last_message = time.monotonic()
        self.connected[hello.name] = writer
        self.divide_credit()
        self.credit_changed = True  # the other writers' shares are smaller now
        writer.grant(self._table.credit(writer))
        self._server.send(peer, WriterWelcome(server_incarnation, writer.connection, writer.received, writer.credit))
        self._server.send(peer, Ack(writer.inserted, self._table.policy_version))  # an earlier one may have been lost

    def _refusal(self, hello: WriterHello) -> str:
        """Why an actor with the right protocol and spec is not served; "" if it is."""
        key = (hello.name, hello.incarnation)
        if key in self._server.quarantine:
            return f"{hello.name} is in quarantine after too many invalid messages: find the cause, then restart it"
        if (owner := shard_of(hello.name, self._shard.count)) != self._shard:  # which may have its chunks already
            return f"{hello.name} belongs to {owner.name}, this is {self._shard.name}: export its folder again, or restart it"
        if len(self.connected) >= MOST_ACTORS and hello.name not in self.connected:
            return f"{hello.name} would be one actor too many: the limit is {MOST_ACTORS:,}"
        if key not in self.known and hello.first_sequence and self._forgotten and not self._logged_below(*key):
            return f"{hello.name} was disconnected too long: replay has deleted its record; restart it"
        return ""

    def _logged_below(self, name: str, incarnation: int) -> int:
        """All chunks of an incarnation with a smaller sequence are in the segment log."""
        return self._journal.next_sequence(name, incarnation) if self._journal else 0

    def _writer_of(self, hello: WriterHello) -> Writer:
        """The record of this incarnation of an actor; makes one if there is none."""
        key = (hello.name, hello.incarnation)
        writer = self.known.pop(key, None)
        if writer is None:
            # The actor or this server is new. If the server is, the writer's oldest chunk comes first, except for chunks that
            # the server before this one has logged.
            first = max(hello.first_sequence, self._logged_below(*key))
            writer = Writer(hello.name, hello.incarnation, hello.streams, b"", 0, received=first, first=first, inserted=first)
        self.known[key] = writer
        self._forget()
        return writer

    def _forget(self) -> None:
        """Deletes records of disconnected incarnations: first of those that never sent a chunk, then the oldest."""
        while len(self.known) > MOST_INCARNATIONS:
            gone = [
                writer for writer in self.known.values() if not writer.waiting and self.connected.get(writer.name) is not writer
            ]
            if not gone[:-1]:  # the last may be the incarnation that greets now
                return
            writer = next((writer for writer in gone[:-1] if writer.received == writer.first), gone[0])
            self._forgotten |= writer.received != writer.first
            del self.known[writer.name, writer.incarnation]

    def on_present(self, peer: bytes) -> None:
        writer = self.peers.get(peer)
        if writer is None:
            self._server.offence(peer, "messages without a greeting", ODDITY)
            self._server.send(peer, Greet())
        else:
            writer.last_message = time.monotonic()

    def on_goodbye(self, peer: bytes) -> None:
        writer = self.peers.get(peer)
        if writer is not None:
            self._leave(writer)
            self.credit_changed = True

    def expel(self, peer: bytes) -> None:
        """Puts the incarnation of a connection in quarantine, so that it cannot continue over another connection."""
        writer = self.peers.get(peer)
        if writer is not None:
            self._server.quarantine.put((writer.name, writer.incarnation))
            self.on_goodbye(peer)

    def _leave(self, writer: Writer) -> None:
        """Ends a writer's credit. Its record stays, so that no chunk is inserted twice if it connects again."""
        self.peers.pop(writer.peer, None)
        if self.connected.get(writer.name) is writer:
            del self.connected[writer.name]

    def on_insert(self, peer: bytes, message: Insert, parts: list[bytes]) -> None:
        """Puts a chunk into the inbox if it is the next of its writer."""
        writer = self.peers.get(peer)
        if writer is not None:
            writer.last_message = time.monotonic()
        if writer is None:
            self._server.offence(peer, "chunks without a greeting", ODDITY)
            self._server.send(peer, Greet())
        elif writer.out_of_step:
            self._out_of_order(writer, "unheard")
        elif message.sequence < writer.received:
            self._out_of_order(writer, "duplicates")
            self._server.send(peer, Ack(writer.inserted, self._table.policy_version))
        elif message.sequence > writer.received:
            # Chunks were lost: accept no more before the writer has greeted and sent them again.
            self._out_of_order(writer, "gaps")
            writer.out_of_step = True
            self._server.send(peer, Greet())
        elif writer.overdraws(self._spec.chunk_bytes):
            # No honest writer does that. The writer keeps the chunk, and after a silence it greets and sends it again.
            writer.out_of_step = True
            self._metrics.count("overdrawn")
            self._server.offence(peer, "more chunks than its credit allows")
        elif len(self._inbox.pending) >= self._most_pending:
            writer.out_of_step = True  # writers that are gone have left too many chunks
            self._metrics.count("overdrawn")
        else:
            # Without parts the chunk is rejected later, and its sequence is acknowledged.
            self._inbox.put(writer, message, parts if sum(map(len, parts)) <= chunk_wire_bytes(self._spec) else [])

    def _out_of_order(self, writer: Writer, counter: str) -> None:
        """Counts a small offence: after a broken connection, an honest writer may do this with all its outstanding chunks."""
        self._metrics.count(counter)
        credit = max(self._table.credit_chunks(writer), LEAST_CREDIT_CHUNKS)
        self._server.offence(writer.peer, f"chunks out of order ({counter})", 1 / credit)

    def acknowledge(self) -> None:
        """Answers the actors whose chunks the table has finished."""
        while self._inbox.advanced:
            writer = self._inbox.advanced.pop()
            while writer.rejected > writer.charged:
                writer.charged += 1
                if self.peers.get(writer.peer) is writer:
                    why = printable(writer.fault)[:FAULT_LETTERS]  # it may name an observation as the environment does
                    self._server.offence(writer.peer, f"chunks with invalid values or parts ({why})")
            credit = self._table.credit(writer)
            # One answer for several chunks, because each answer wakes the writer's process up.
            half = 2 * (writer.inserted - writer.acknowledged) * self._spec.chunk_bytes >= credit
            if half or not writer.waiting or self._table.blocked:
                if credit != writer.credit:
                    self._send_credit(writer, credit)
                writer.acknowledged = writer.inserted
                self._server.send(writer.peer, Ack(writer.inserted, self._table.policy_version))

    def send_credit(self) -> None:
        """When it is due: divides the credit and sends every actor its share, then again without those that cannot be reached."""
        if not self.credit_changed and time.monotonic() < self._next_credit:
            return
        self.credit_changed, self._next_credit = False, time.monotonic() + CREDIT_SECONDS
        self.divide_credit()
        for writer in list(self.connected.values()):
            if not self._send_credit(writer, self._table.credit(writer)):
                self._leave(writer)
                say(f"{writer.name} cannot be reached; when it connects again, it sends its unacknowledged chunks again")
                self.credit_changed = True
        self.divide_credit()
        self._report_silence()

    def _report_silence(self) -> None:
        """Reports actors that send nothing. They keep their credit: a simulator may be slow, or a network interrupted."""
        now = time.monotonic()
        silent = [writer for writer in self.connected.values() if now - writer.last_message > SILENCE_SECONDS]
        self._metrics.gauge("silent_writers", len(silent))
        for writer in silent:
            if writer.silence_reported < writer.last_message and now - writer.silence_reported > REPORT_AGAIN_SECONDS:
                writer.silence_reported = now
                say(f"no message from {writer.name} for {now - writer.last_message:.0f} s")

    def divide_credit(self) -> None:
        """Divides the credit among the connected actors, and limits the waiting chunks to twice the credit: writers may still use
        an earlier division."""
        present = list(self.connected.values())
        self._table.writers_changed(present)
        credit = sum(self._table.credit(writer) // self._spec.chunk_bytes + 1 for writer in present)
        self._most_pending = 2 * max(credit, self._inbox.room)

    def reassure(self) -> None:
        """Sends Hold to the actors whose chunks wait, so that they do not greet again."""
        for writer in self.connected.values():
            if writer.waiting and not writer.out_of_step:
                self._server.send(writer.peer, Hold())

    def measure(self) -> None:
        self._metrics.gauge("queue", len(self._inbox.pending))
        self._metrics.gauge("queue_limit", sum(map(self._table.credit_chunks, self.connected.values())))

    def _send_credit(self, writer: Writer, credit: int) -> bool:
        writer.grant(credit)
        return self._server.send(writer.peer, Credit(credit))
