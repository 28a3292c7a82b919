"""The actors' half of the replay server: who they are, what has arrived, how much each may have under way."""

from __future__ import annotations

import time

from replay.arrivals import Pending, Writer
from replay.serving import mismatch
from replay.source import Source
from transport.channel import Server
from transport.experience import ExperienceSpec
from transport.lifetime import say
from transport.messages import Ack, Credit, Greet, Hold, Insert, Refused, WriterHello, WriterWelcome
from transport.metrics import Metrics

CREDIT_SECONDS = 0.5  # how often writers are told their credit, which finds out who is gone and tells them that replay is there


class Writers:
    """Queues what actors send, in order and once, and acknowledges what the source is done with."""

    def __init__(self, spec: ExperienceSpec, source: Source, server: Server, metrics: Metrics, incarnation: int) -> None:
        """`incarnation`: the replay server's."""
        self._spec, self._source, self._server, self._metrics, self._incarnation = spec, source, server, metrics, incarnation
        self._writers: dict[str, Writer] = {}
        self._peers: dict[bytes, Writer] = {}
        self._connections = 0
        self._next_credit = time.monotonic() + CREDIT_SECONDS

    def on_hello(self, peer: bytes, hello: WriterHello) -> None:
        """An actor greets: a new one, a new life of one, or one that is known."""
        reason = mismatch(self._spec, hello)
        if reason:
            self._server.send(peer, Refused(reason))
            return
        writer = self._writers.get(hello.name)
        if writer is None or writer.incarnation != hello.incarnation:
            # Either a new life of the actor, or this server is the new one: what the writer still holds comes first, but for
            # what the server before this one has written down.
            if writer is not None:
                self._peers.pop(writer.peer, None)
            first = max(hello.first_sequence, self._source.written(hello.name, hello.incarnation))
            writer = Writer(hello.name, hello.incarnation, hello.streams, b"", 0, received=first, inserted=first)
            self._writers[hello.name] = writer
        if self._peers.get(peer) is not writer:
            self._peers.pop(writer.peer, None)
            self._connections += 1
            writer.peer, writer.connection = peer, self._connections
            self._peers[peer] = writer
        writer.present = True
        self._source.writers_changed(self._present())
        self.share_credit_soon()  # the shares of the others are smaller now
        writer.credit_bytes = self._source.credit_bytes(writer)
        self._server.send(peer, WriterWelcome(self._incarnation, writer.connection, writer.received, writer.credit_bytes))
        self._server.send(peer, Ack(writer.inserted, self._source.policy_version))  # the one that it waits for may have been lost

    def on_goodbye(self, peer: bytes) -> None:
        """An actor has no more to send."""
        writer = self._peers.pop(peer, None)
        if writer is not None:
            writer.present = False
            self.share_credit_soon()

    def on_insert(self, peer: bytes, message: Insert, parts: list[bytes]) -> None:
        """A chunk has arrived: queued when it is the next of its writer."""
        writer = self._peers.get(peer)
        if writer is None:
            self._server.send(peer, Greet())
            return
        if message.sequence < writer.received:
            self._metrics.count("duplicates")
            self._server.send(peer, Ack(writer.inserted, self._source.policy_version))
            return
        if message.sequence > writer.received:
            # Messages were lost on the way: take nothing more until the writer has greeted and begun again where they are.
            self._metrics.count("gaps")
            self._peers.pop(peer)
            self._server.send(peer, Greet())
            return
        writer.received = message.sequence + 1
        writer.waiting += 1
        self._source.pending.append(Pending(writer, message, parts))

    def acknowledge(self) -> None:
        """Tells those whose chunks the source is done with."""
        while self._source.advanced:
            writer = self._source.advanced.pop()
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
        self._source.writers_changed(self._present())
        for writer in self._present():
            if not self._tell_credit(writer, self._source.credit_bytes(writer)):
                self._peers.pop(writer.peer, None)
                writer.present = False
                self._metrics.count("lost_writers")
                say(f"{writer.name} cannot be reached any more; whatever it has not been told is stored it will send again")
                self.share_credit_soon()  # once more, with fewer
        self._source.writers_changed(self._present())

    def reassure(self) -> None:
        """Tells those who wait that silence is not trouble."""
        for writer in self._writers.values():
            if writer.waiting:
                self._server.send(writer.peer, Hold())

    def measure(self) -> None:
        """Sets the gauges that change all the time."""
        self._metrics.gauge("queue", len(self._source.pending))
        self._metrics.gauge("queue_limit", sum(map(self._source.credit_chunks, self._present())))

    def _present(self) -> list[Writer]:
        return [writer for writer in self._writers.values() if writer.present]

    def _tell_credit(self, writer: Writer, credit_bytes: int) -> bool:
        writer.credit_bytes = credit_bytes
        return self._server.send(writer.peer, Credit(credit_bytes))
