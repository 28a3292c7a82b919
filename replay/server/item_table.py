"""Items: every transition may be drawn again and again, as often as the limiter allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from replay.config import ReplayConfig
from replay.log.journal import Journal
from replay.server.arrivals import Pending, Writer, read_arrival
from replay.table.capacity import overhead_bytes
from replay.table.checks import RejectedChunk
from replay.table.table import Table
from transport.experience import ExperienceSpec
from transport.messages import SampleRequest
from transport.metrics import Metrics, Record

CHUNKS_PER_TURN = 8  # then batches again: inserting takes its time, receiving does not
CHUNKS_OF_CREDIT = 8


class Items:
    """A table and, if it is durable, its journal. Acknowledged means in the table and written down."""

    def __init__(
        self,
        spec: ExperienceSpec,
        config: ReplayConfig,
        seed: int,
        metrics: Metrics,
        folder: Path | None,
        going_on: Callable[[], bool],
        lent_items: int,
    ) -> None:
        """Restores what `folder` holds, if one is given. Raises ValueError, RestoreStopped, OSError."""
        self._spec, self._config, self._metrics = spec, config, metrics
        self._overhead_bytes = overhead_bytes(spec, config, lent_items)
        self.table = Table(spec, config, seed, lent_items)
        self._journal = Journal(folder, self.table, config, going_on) if folder else None
        self.pending: deque[Pending] = deque()
        self.advanced: set[Writer] = set()
        self._writers = 1

    def connect(self, batch: int, lent: int) -> None:
        """The limiter leaves room for what learners may have asked for."""
        self.table.limiter.batches = lent
        self.table.limiter.connect_learner()

    def disconnect(self, batch: int, lent: int) -> None:
        """Without a learner inserts never wait."""
        self.table.limiter.batches = lent
        if not lent:
            self.table.limiter.disconnect_learner()

    @property
    def receive_bytes(self) -> int:
        """As configured."""
        return self._config.receive_bytes

    @property
    def memory_bytes(self) -> int:
        """A full table, and what comes beside it."""
        return self.table.capacity_bytes + self._overhead_bytes

    @property
    def policy_version(self) -> int:
        """Any will do."""
        return -1

    @property
    def holds(self) -> bool:
        """As the limiter says."""
        return not self.table.can_insert()

    def insert(self) -> None:
        """A few chunks, as the limiter allows."""
        for _ in range(CHUNKS_PER_TURN):
            if not self.pending or self.holds:
                return
            self._insert(self.pending.popleft())

    def _insert(self, pending: Pending) -> None:
        writer, message, parts = pending
        try:
            chunk = read_arrival(self._spec, pending, self.table.vacant(), self._config.reward_limit)
        except RejectedChunk:  # its sequence is acknowledged all the same, so that its sender goes on
            self._metrics.count("rejected")
            writer.rejected += 1
        else:
            if self._journal:  # first of all: acknowledged means written
                self._journal.append(writer.name, writer.incarnation, message, parts)
            self._metrics.count("inserted_steps", self.table.insert(chunk))
            self._metrics.count("inserted_chunks")
        writer.inserted = message.sequence + 1
        writer.waiting -= 1
        self.advanced.add(writer)

    def draw(self, request: SampleRequest, arrays: dict[str, np.ndarray]) -> int | None:
        """As the limiter allows."""
        if not self.table.can_sample():
            return None
        self.table.sample(arrays)
        return len(arrays["key"])

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        """Keys that are gone are left out, and what cannot be a priority."""
        if unfit := len(priorities) - int(np.count_nonzero(np.isfinite(priorities) & (priorities >= 0))):
            self._metrics.count("unfit_priorities", unfit)
        return self.table.update_priorities(keys, priorities)

    def writers_changed(self, present: list[Writer]) -> None:
        """Room in the limiter for everything under way, so that the two sides never wait for each other."""
        self._writers = max(len(present), 1)
        self.table.limiter.under_way = sum(map(self.credit_chunks, present)) * self._spec.chunk_length

    def credit_chunks(self, writer: Writer) -> int:
        """Enough that nobody waits for an answer."""
        return max(CHUNKS_OF_CREDIT, 2 * writer.streams)

    def credit_bytes(self, writer: Writer) -> int:
        """No more than an equal share of the receive budget."""
        return min(self.credit_chunks(writer) * self._spec.chunk_bytes, self._config.receive_bytes // self._writers)

    def written(self, name: str, incarnation: int) -> int:
        """As the journal knows."""
        return self._journal.next_sequence(name, incarnation) if self._journal else 0

    @property
    def counters(self) -> Record:
        """Restored ones."""
        return self._journal.counters if self._journal else {}

    def turn(self, counters: Callable[[], Record]) -> None:
        """The journal's."""
        if self._journal:
            self._journal.turn(counters)

    def close(self, counters: Callable[[], Record]) -> None:
        """The journal is whole then."""
        if self._journal:
            self._journal.close(counters())

    def measure(self) -> None:
        """What the table holds, and how the limiter's band is kept."""
        table, metrics = self.table, self._metrics
        metrics.gauge("items", table.size)
        metrics.gauge("capacity", table.capacity)
        metrics.gauge("bytes", table.used_bytes)
        metrics.gauge("samples_per_insert", table.sampled_items / max(table.inserted_items, 1))
        metrics.gauge("min_size", self._config.min_size)
        metrics.gauge("band_low", self._config.samples_per_insert_low)
        metrics.gauge("band_high", self._config.samples_per_insert_high)
        if self._journal:
            metrics.gauge("log_bytes", self._journal.log.total_bytes)
            metrics.gauge("unlogged_chunks", self._journal.log.unlogged)
            metrics.gauge("unsynced_chunks", self._journal.log.unsynced.chunks)
            metrics.gauge("unsynced_bytes", self._journal.log.unsynced.bytes)
            for name, value in self._journal.losses.items():
                metrics.gauge(name, value)

    @property
    def summary(self) -> str:
        """What fits."""
        return f"holds {self.table.capacity:,} items at most, in {self.table.capacity_bytes / 1e6:,.1f} MB"
