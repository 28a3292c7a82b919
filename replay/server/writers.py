"""The actors' half of the replay server: who they are, what has arrived, how much each may have under way."""

from __future__ import annotations

import time

from replay.server.arrivals import Pending, Writer, regrouped
from replay.server.learners import mismatch
from replay.table.base import Source
from transport.compression import chunk_wire_bytes
from transport.experience import ExperienceSpec
from transport.lifetime import say
from transport.messages import MOST_ACTORS, Ack, Credit, Greet, Hold, Insert, Refused, WriterHello, WriterWelcome
from transport.metrics import Metrics
from transport.sockets.channel import Server
from transport.sockets.quarantine import ODDITY

CREDIT_SECONDS = 0.5  # how often writers are told their credit, which finds out who is gone and tells them that replay is there
SILENCE_SECONDS = 4.0  # of an actor, which says each second that it is there
TELL_AGAIN_SECONDS = 60.0  # of the same actor: a simulator's steps may all be so long
MOST_LIVES = 4 * MOST_ACTORS  # of actors, that are remembered
GREETING = 0.2  # of an offence: one greeting in a while is none
LEAST_CREDIT_CHUNKS = 32  # in judging what arrives out of order


class Writers:
    """Queues what actors send, in order and once, and acknowledges what the source is done with.

    Everything that a sender may make it keep is bounded: what it may have under way by its credit, how many may be here at once,
    how many lives are remembered.
    """

    def __init__(self, spec: ExperienceSpec, source: Source, server: Server, metrics: Metrics, incarnation: int) -> None:
        """`incarnation`: the replay server's."""
        self._spec, self._source, self._server, self._metrics, self._incarnation = spec, source, server, metrics, incarnation
        self._lives: dict[tuple[str, int], Writer] = {}  # by name and incarnation; who greeted last is last
        self._here: dict[str, Writer] = {}  # by name: the life that holds credit
        self._peers: dict[bytes, Writer] = {}
        self._connections = 0
        self._forgotten = False  # some life that had sent something
        self._most_pending = 0
        self._next_credit = time.monotonic() + CREDIT_SECONDS

    def on_hello(self, peer: bytes, hello: WriterHello) -> None:
        """An actor greets: a new one, a new life of one, or one that is known."""
        self._server.offence(peer, "greetings without end", GREETING)
        if reason := mismatch(self._spec, hello) or self._refusal(peer, hello):
            self._server.send(peer, Refused(reason))
            return
        writer = self._life(hello)
        if (before := self._peers.get(peer)) is not None and before is not writer:
            self._leave(before)  # a connection is one writer
        if (other := self._here.get(hello.name)) is not None and other is not writer:
            self._leave(other)
        if before is not writer or writer.deaf:  # something may have been lost: it begins again where that was
            self._peers.pop(writer.peer, None)
            self._connections += 1
            writer.peer, writer.connection = peer, self._connections
            self._peers[peer] = writer
        writer.deaf = False
        writer.heard = time.monotonic()
        self._here[hello.name] = writer
        self._share_out()
        self.share_credit_soon()  # the shares of the others are smaller now
        writer.grant(self._source.credit_bytes(writer))
        self._server.send(peer, WriterWelcome(self._incarnation, writer.connection, writer.received, writer.credit_bytes))
        self._server.send(peer, Ack(writer.inserted, self._source.policy_version))  # the one that it waits for may have been lost

    def _refusal(self, peer: bytes, hello: WriterHello) -> str:
        """Why an actor that has the right spec is not served; empty when it is."""
        life = (hello.name, hello.incarnation)
        if self._server.conduct.quarantined(life):
            return (
                f"this life of {hello.name} is in quarantine, for sending what cannot be used: find out why, and start it again"
            )
        if len(self._here) >= MOST_ACTORS and hello.name not in self._here:
            return f"{hello.name} would be one actor too many: there are {MOST_ACTORS:,}"
        if life not in self._lives and hello.first_sequence and self._forgotten and not self._source.written(*life):
            return f"{hello.name} was away for too long, and is not known any more: start it again"
        return ""

    def _life(self, hello: WriterHello) -> Writer:
        """What is known of this life of an actor; from now on that is something."""
        life = (hello.name, hello.incarnation)
        writer = self._lives.pop(life, None)
        if writer is None:
            # Either a new life of the actor, or this server is the new one: what the writer still holds comes first, but for
            # what the server before this one has written down.
            first = max(hello.first_sequence, self._source.written(*life))
            writer = Writer(hello.name, hello.incarnation, hello.streams, b"", 0, received=first, first=first, inserted=first)
        self._lives[life] = writer
        self._forget()
        return writer

    def _forget(self) -> None:
        """Of those who are gone, forgets first who never sent a chunk, then who was here longest ago."""
        while len(self._lives) > MOST_LIVES:
            gone = [writer for writer in self._lives.values() if not writer.waiting and self._here.get(writer.name) is not writer]
            if not gone[:-1]:  # the last may be the one that has just greeted
                return
            writer = next((writer for writer in gone[:-1] if writer.received == writer.first), gone[0])
            self._forgotten |= writer.received != writer.first
            del self._lives[writer.name, writer.incarnation]

    def on_present(self, peer: bytes) -> None:
        """An actor has nothing to send."""
        writer = self._peers.get(peer)
        if writer is None:
            self._server.offence(peer, "no greeting", ODDITY)
            self._server.send(peer, Greet())
        else:
            writer.heard = time.monotonic()

    def on_goodbye(self, peer: bytes) -> None:
        """An actor has no more to send."""
        writer = self._peers.get(peer)
        if writer is not None:
            self._leave(writer)
            self.share_credit_soon()

    def quarantine(self, peer: bytes) -> None:
        """Nothing more is taken from whoever is connected there, nor from this life of it over another connection."""
        writer = self._peers.get(peer)
        if writer is not None:
            self._server.conduct.quarantine((writer.name, writer.incarnation))
            self.on_goodbye(peer)

    def _leave(self, writer: Writer) -> None:
        """Holds no credit any more. What has arrived is remembered, lest it be taken twice from one who comes back."""
        self._peers.pop(writer.peer, None)
        if self._here.get(writer.name) is writer:
            del self._here[writer.name]

    def on_insert(self, peer: bytes, message: Insert, parts: list[bytes]) -> None:
        """A chunk has arrived: queued when it is the next of its writer."""
        writer = self._peers.get(peer)
        if writer is not None:
            writer.heard = time.monotonic()
        if writer is None:
            self._server.offence(peer, "chunks, but no greeting", ODDITY)
            self._server.send(peer, Greet())
        elif writer.deaf:
            self._out_of_order(writer, "unheard")
        elif message.sequence < writer.received:
            self._out_of_order(writer, "duplicates")
            self._server.send(peer, Ack(writer.inserted, self._source.policy_version))
        elif message.sequence > writer.received:
            # Messages were lost on the way: take nothing more until the writer has greeted and begun again where they are.
            self._out_of_order(writer, "gaps")
            writer.deaf = True
            self._server.send(peer, Greet())
        elif writer.overdraws(self._spec.chunk_bytes):
            # No honest writer does that. It still holds the chunk, and sends it again once its silence has lasted too long.
            writer.deaf = True
            self._metrics.count("overdrawn")
            self._server.offence(peer, "more than its credit allows")
        elif len(self._source.pending) >= self._most_pending:
            writer.deaf = True  # others have brought too much and gone
            self._metrics.count("overdrawn")
        else:
            writer.received = message.sequence + 1
            writer.waiting += 1
            if sum(map(len, parts)) > chunk_wire_bytes(self._spec):
                parts = []  # no chunk, but its place in the sequence is taken
            self._source.pending.append(Pending(writer, message, regrouped(message, parts)))

    def _out_of_order(self, writer: Writer, counter: str) -> None:
        """What an honest writer may do, too, with all that it has under way, when a connection breaks."""
        self._metrics.count(counter)
        credit = max(self._source.credit_chunks(writer), LEAST_CREDIT_CHUNKS)
        self._server.offence(writer.peer, f"{counter} again and again", 1 / credit)

    def acknowledge(self) -> None:
        """Tells those whose chunks the source is done with."""
        while self._source.advanced:
            writer = self._source.advanced.pop()
            while writer.rejected > writer.charged:
                writer.charged += 1
                if self._peers.get(writer.peer) is writer:
                    self._server.offence(writer.peer, "chunks that cannot be learned from")
            credit = self._source.credit_bytes(writer)
            # One answer for several chunks, where several have come: each answer wakes its writer.
            half = 2 * (writer.inserted - writer.acknowledged) * self._spec.chunk_bytes >= credit
            if half or not writer.waiting or self._source.holds:
                if credit != writer.credit_bytes:
                    self._tell_credit(writer, credit)
                writer.acknowledged = writer.inserted
                self._server.send(writer.peer, Ack(writer.inserted, self._source.policy_version))

    def share_credit_soon(self) -> None:
        """Something has changed that credit depends on."""
        self._next_credit = 0.0

    def share_credit(self) -> None:
        """When it is time: tells everyone their share, and divides it among those who can still be reached."""
        if time.monotonic() < self._next_credit:
            return
        self._next_credit = time.monotonic() + CREDIT_SECONDS
        self._share_out()
        for writer in list(self._here.values()):
            if not self._tell_credit(writer, self._source.credit_bytes(writer)):
                self._leave(writer)
                say(f"{writer.name} cannot be reached any more; what it has not been told is stored it will send again")
                self.share_credit_soon()  # once more, with fewer
        self._share_out()
        self._listen()

    def _listen(self) -> None:
        """Tells of who is silent. It stays: its simulator may take so long, or the line to it be broken for now."""
        now = time.monotonic()
        silent = [writer for writer in self._here.values() if now - writer.heard > SILENCE_SECONDS]
        self._metrics.gauge("silent_writers", len(silent))
        for writer in silent:
            if writer.told < writer.heard and now - writer.told > TELL_AGAIN_SECONDS:
                writer.told = now
                say(f"nothing has come from {writer.name} for {now - writer.heard:.0f} s")

    def _share_out(self) -> None:
        """Divides credit among who is here, and says how much may wait in all: that, twice, for it may have been divided anew."""
        present = list(self._here.values())
        self._source.writers_changed(present)
        credit = sum(self._source.credit_bytes(writer) // self._spec.chunk_bytes + 1 for writer in present)
        self._most_pending = 2 * max(credit, self._source.receive_bytes // self._spec.chunk_bytes)

    def reassure(self) -> None:
        """Tells those who wait that silence is not trouble."""
        for writer in self._here.values():
            if writer.waiting and not writer.deaf:
                self._server.send(writer.peer, Hold())

    def measure(self) -> None:
        """Sets the gauges that change all the time."""
        self._metrics.gauge("queue", len(self._source.pending))
        self._metrics.gauge("queue_limit", sum(map(self._source.credit_chunks, self._here.values())))

    def _tell_credit(self, writer: Writer, credit_bytes: int) -> bool:
        writer.grant(credit_bytes)
        return self._server.send(writer.peer, Credit(credit_bytes))
