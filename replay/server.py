"""The replay server: one thread that owns the table and one socket for everyone."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from replay.config import ReplayConfig
from replay.journal import Journal
from replay.serving import Serving, mismatch
from replay.table import RejectedChunk, Table, check_values
from transport.channel import Server, wait
from transport.compression import CorruptChunk, chunk_wire_bytes, crc32, unpack_chunk
from transport.experience import Chunk, ExperienceSpec
from transport.messages import (
    Ack,
    Credit,
    Goodbye,
    Greet,
    Hold,
    Insert,
    PriorityUpdate,
    Refused,
    SampleRequest,
    SamplerHello,
    WriterHello,
    WriterWelcome,
)
from transport.metrics import Metrics, Record

HOLD_SECONDS = 0.5  # how often those who wait for the limiter are told that they do
MESSAGES_PER_TURN = 64
CHUNKS_PER_TURN = 8  # then batches again: inserting takes its time, receiving does not
CHUNKS_OF_CREDIT = 8
COUNTERS = ("inserted_steps", "inserted_chunks", "sampled_items", "duplicates", "gaps", "rejected", "stale_priorities")
CREDIT_SECONDS = 5.0  # how often writers are told their credit, which finds out who is gone


@dataclass
class Writer:
    """What the server knows of one life of one actor."""

    name: str
    incarnation: int
    streams: int
    peer: bytes
    connection: int
    received: int  # every sequence below has arrived
    inserted: int = 0  # every sequence below is in the table
    acknowledged: int = 0  # every sequence below is known to be, as far as the writer has been told
    waiting: int = 0  # arrived, not in the table yet
    present: bool = True  # holds credit; what has arrived is remembered for good, lest one who comes back is taken twice


class Pending(NamedTuple):
    """A chunk that has arrived and waits for the limiter."""

    writer: Writer
    message: Insert
    parts: list[bytes]


class ReplayServer:
    """Takes chunks from actors, serves batches to the learner. Call `turn` for ever."""

    def __init__(
        self,
        spec: ExperienceSpec,
        config: ReplayConfig,
        seed: int,
        incarnation: int,
        address: str,
        metrics: Metrics,
        folder: Path | None = None,
        going_on: Callable[[], bool] = lambda: True,
        lent_items: int = 0,
    ) -> None:
        """Restores what `folder` holds, if one is given; then binds.

        `going_on` is called all the time while it restores; `lent_items` is the table's. Raises ValueError when the
        configuration holds no chunk or the folder is another run's, RestoreStopped when not `going_on`, OSError when the
        address cannot be bound.
        """
        self.spec = spec
        self.table = Table(spec, config, seed, lent_items)
        self._journal = Journal(folder, self.table, config, going_on) if folder else None
        self._config = config
        self._incarnation = incarnation
        self._metrics = metrics
        self._wire_bytes = chunk_wire_bytes(spec)
        self._server = Server(address, max_part_bytes=max(self._wire_bytes, 1 << 20))
        self.address = self._server.address
        self._writers: dict[str, Writer] = {}
        self._peers: dict[bytes, Writer] = {}
        self._connections = 0
        self._pending: deque[Pending] = deque()
        self._serving = Serving(spec, self.table, self._server, metrics, incarnation)
        self._next_hold = 0.0
        restored = self._journal.counters if self._journal else {}
        metrics.begin_at(dict.fromkeys(COUNTERS, 0.0) | restored)
        self._next_credit = time.monotonic() + CREDIT_SECONDS

    def turn(self, timeout_seconds: float) -> None:
        """Reads what has come, inserts and samples as the limiter allows, answers; waits at most `timeout_seconds` for work."""
        with self._metrics.phase(self._idle_phase()):
            if not (self._pending and self.table.can_insert()):
                wait([self._server], timeout_seconds)
        with self._metrics.phase("busy"):
            for _ in range(MESSAGES_PER_TURN):
                arrival = self._server.receive()
                if arrival is None:
                    break
                self._handle(*arrival)
            self._insert_pending()
            self._serving.serve()
            if time.monotonic() >= self._next_hold:
                self._next_hold = time.monotonic() + HOLD_SECONDS
                self._reassure()
            if time.monotonic() >= self._next_credit:
                self._share_credit()
            if self._journal:
                self._journal.turn(self._counters)

    def close(self) -> None:
        """Closes the socket and the learner's memory; returns when everything is on disk."""
        self._serving.drop()
        self._server.close()
        if self._journal:
            self._journal.close(self._counters())

    def _counters(self) -> Record:
        return {name: self._metrics.value(name) for name in COUNTERS}

    def _idle_phase(self) -> str:
        # Waiting has a reason, and the bottleneck is told from it.
        if self._pending:
            return "insert_hold"
        if self._serving.awaited:
            return "sample_hold"
        return "idle"

    def _handle(self, peer: bytes, message: object, parts: list[bytes]) -> None:
        if isinstance(message, Insert):
            self._on_insert(peer, message, parts)
        elif isinstance(message, SampleRequest):
            self._serving.on_request(peer, message)
        elif isinstance(message, PriorityUpdate):
            self._serving.on_priorities(peer, message, parts)
        elif isinstance(message, WriterHello):
            self._on_writer(peer, message)
        elif isinstance(message, SamplerHello):
            self._serving.on_hello(peer, message)
        elif isinstance(message, Goodbye):
            self._on_goodbye(peer)
        else:
            self._metrics.count("rejected")

    # ---- actors

    def _on_writer(self, peer: bytes, hello: WriterHello) -> None:
        reason = mismatch(self.spec, hello)
        if reason:
            self._server.send(peer, Refused(reason))
            return
        writer = self._writers.get(hello.name)
        if writer is None or writer.incarnation != hello.incarnation:
            # Either a new life of the actor, or this server is the new one: what the writer still holds comes first, but for
            # what the server before this one has written down.
            if writer is not None:
                self._peers.pop(writer.peer, None)
            written = self._journal.next_sequence(hello.name, hello.incarnation) if self._journal else 0
            first = max(hello.first_sequence, written)
            writer = Writer(hello.name, hello.incarnation, hello.streams, b"", 0, received=first, inserted=first)
            self._writers[hello.name] = writer
        if self._peers.get(peer) is not writer:
            self._peers.pop(writer.peer, None)
            self._connections += 1
            writer.peer, writer.connection = peer, self._connections
            self._peers[peer] = writer
        writer.present = True
        self._set_slack()
        self._next_credit = 0.0  # the shares of the others are smaller now
        self._server.send(peer, WriterWelcome(self._incarnation, writer.connection, writer.received, self._credit_bytes(writer)))
        self._server.send(peer, Ack(writer.inserted))  # the one that it waits for may have been lost

    def _on_goodbye(self, peer: bytes) -> None:
        writer = self._peers.pop(peer, None)
        if writer is not None:
            writer.present = False
            self._next_credit = 0.0

    def _present(self) -> list[Writer]:
        return [writer for writer in self._writers.values() if writer.present]

    def _share_credit(self) -> None:
        """Divides the receive budget, and the limiter's slack, among the writers that can still be reached."""
        self._next_credit = time.monotonic() + CREDIT_SECONDS
        for writer in self._present():
            if not self._server.send(writer.peer, Credit(self._credit_bytes(writer))):
                self._peers.pop(writer.peer, None)
                writer.present = False
                self._next_credit = 0.0  # once more, with fewer
        self._set_slack()

    def _credit_chunks(self, writer: Writer) -> int:
        return max(CHUNKS_OF_CREDIT, 2 * writer.streams)

    def _credit_bytes(self, writer: Writer) -> int:
        share = self._config.receive_bytes // max(len(self._present()), 1)
        return min(self._credit_chunks(writer) * self.spec.chunk_bytes, share)

    def _set_slack(self) -> None:
        """Room for everything under way, so that the two sides never wait for each other."""
        chunks = sum(self._credit_chunks(writer) for writer in self._present())
        self.table.limiter.under_way = chunks * self.spec.chunk_length

    def _on_insert(self, peer: bytes, message: Insert, parts: list[bytes]) -> None:
        writer = self._peers.get(peer)
        if writer is None:
            self._server.send(peer, Greet())
            return
        if message.sequence < writer.received:
            self._metrics.count("duplicates")
            self._server.send(peer, Ack(writer.inserted))
            return
        if message.sequence > writer.received:
            # Messages were lost on the way: take nothing more until the writer has greeted and begun again where they are.
            self._metrics.count("gaps")
            self._peers.pop(peer)
            self._server.send(peer, Greet())
            return
        writer.received = message.sequence + 1
        writer.waiting += 1
        self._pending.append(Pending(writer, message, parts))

    def _read_chunk(self, message: Insert, parts: list[bytes]) -> Chunk | None:
        """A chunk whose large columns lie in the table's vacant slot.

        None for one that is not fit to be learned from; it is counted, and its sequence still acknowledged, so that its sender
        goes on.
        """
        try:
            if message.length > self.spec.chunk_length:
                raise CorruptChunk(f"{message.length} items")
            if crc32(parts) != message.crc32:
                raise CorruptChunk("checksum differs")
            chunk = Chunk(message.stream, message.length, unpack_chunk(self.spec, message.length, parts, self.table.vacant()))
            check_values(self.spec, chunk)
            return chunk
        except (CorruptChunk, RejectedChunk):
            self._metrics.count("rejected")
            return None

    def _insert_pending(self) -> None:
        touched: dict[str, Writer] = {}
        for _ in range(CHUNKS_PER_TURN):
            if not (self._pending and self.table.can_insert()):
                break
            writer, message, parts = self._pending.popleft()
            chunk = self._read_chunk(message, parts)
            if chunk is not None:
                if self._journal:  # first of all: acknowledged means written
                    self._journal.append(writer.name, writer.incarnation, message, parts)
                self._metrics.count("inserted_steps", self.table.insert(chunk))
                self._metrics.count("inserted_chunks")
            writer.inserted = message.sequence + 1
            writer.waiting -= 1
            touched[writer.name] = writer
        for writer in touched.values():
            # One answer for several chunks, where several have come: each answer wakes its writer.
            half = 2 * (writer.inserted - writer.acknowledged) * self.spec.chunk_bytes >= self._credit_bytes(writer)
            if half or not writer.waiting or not self.table.can_insert():
                self._acknowledge(writer)

    def _acknowledge(self, writer: Writer) -> None:
        writer.acknowledged = writer.inserted
        self._server.send(writer.peer, Ack(writer.inserted))

    def _reassure(self) -> None:
        """Tells everyone who waits that silence is not trouble; finds out whether the learner is still there."""
        for writer in self._writers.values():
            if writer.waiting:
                self._server.send(writer.peer, Hold())
        self._serving.reassure()

    def measure(self) -> None:
        """Sets the gauges that change all the time."""
        table, metrics = self.table, self._metrics
        metrics.gauge("items", table.size)
        metrics.gauge("capacity", table.capacity)
        metrics.gauge("bytes", table.used_bytes)
        metrics.gauge("samples_per_insert", table.sampled_items / max(table.inserted_items, 1))
        metrics.gauge("min_size", self._config.min_size)
        metrics.gauge("band_low", self._config.samples_per_insert_low)
        metrics.gauge("band_high", self._config.samples_per_insert_high)
        metrics.gauge("queue", len(self._pending))
        metrics.gauge("queue_limit", sum(self._credit_chunks(writer) for writer in self._present()))
        metrics.gauge("malformed", self._server.malformed)
        metrics.gauge("received_bytes", self._server.received_bytes)
        if self._journal:
            metrics.gauge("log_bytes", self._journal.log.total_bytes)
            metrics.gauge("unlogged_chunks", self._journal.log.unlogged)
