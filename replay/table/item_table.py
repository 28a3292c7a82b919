"""The table for items that are drawn repeatedly: transitions or sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.config import ReplayConfig
from replay.table.inbox import Inbox, RejectedChunk, Writer
from replay.table.layout import leaves_per_chunk, overhead_bytes
from replay.table.ring import Ring
from transport.experience import Chunk, ExperienceSpec
from transport.messages.replay import Counts, SampleRequest
from transport.metrics import Metrics

if TYPE_CHECKING:
    from replay.log.demonstrations import Demonstrations
    from replay.log.human_steps import HumanSteps
    from replay.log.journal import Journal

CHUNKS_PER_TURN = 8  # inserting a chunk takes long, so batches are served in between
CHUNKS_OF_CREDIT = 8


class ItemTable:
    """Fills a ring from the inbox. A chunk is acknowledged when it is in the ring and, if there is a journal, in the log."""

    def __init__(
        self,
        ring: Ring,
        config: ReplayConfig,
        inbox: Inbox,
        metrics: Metrics,
        journal: Journal | None,
        leased: int,
        demonstrations: Demonstrations | None = None,
        offline: bool = False,
        human_steps: HumanSteps | None = None,
    ) -> None:
        """`leased`: items in the learners' slots. `demonstrations` and `human_steps` are drawn, too. `offline`: nothing is
        inserted, and each batch of all learners counts as a step of the run."""
        self._offline, self._batch = offline, 1
        self._demonstrations, self.human_steps = demonstrations, human_steps
        self._auxiliary = [each for each in (demonstrations, human_steps) if each is not None]
        self._rings = [ring, *(each.ring for each in self._auxiliary)]
        self.ring, self._spec, self._config = ring, ring.spec, config
        self._inbox, self._metrics, self._journal = inbox, metrics, journal
        self._overhead_bytes = overhead_bytes(ring.spec, config, leased)
        self._writers = 1

    @property
    def blocked(self) -> bool:
        return not self.ring.can_insert()

    @property
    def memory_bytes(self) -> int:
        return self._overhead_bytes + sum(each.capacity_bytes for each in self._rings)

    @property
    def policy_version(self) -> int:
        return -1  # off-policy algorithms learn from transitions of any version

    @property
    def summary(self) -> str:
        others = f", beside {self._demonstrations.size:,} demonstrations" if self._demonstrations else ""
        return f"keeps at most {self.ring.capacity:,} items, in {self.ring.capacity_bytes / 1e6:,.1f} MB{others}"

    def insert(self) -> None:
        """Inserts up to CHUNKS_PER_TURN chunks from the inbox, as the limiter allows."""
        for _ in range(CHUNKS_PER_TURN):
            if not self._inbox.pending or self.blocked:
                return
            self._insert()

    def _insert(self) -> None:
        pending = self._inbox.pending.popleft()
        writer = pending.writer
        try:
            chunk = pending.read(self._spec, self.ring.vacant(min(pending.message.length, self._spec.chunk_length)))
        except RejectedChunk as error:  # it is acknowledged nevertheless, so that the writer continues
            self._metrics.count("rejected")
            writer.rejected, writer.fault = writer.rejected + 1, str(error)
        else:
            if self._journal:  # before the insert, because an inserted chunk is acknowledged
                self._journal.append(writer.name, writer.incarnation, pending.message, pending.parts)
            if self.human_steps:
                sender = writer.name, writer.incarnation, pending.message
                self._metrics.count("human_steps", self.human_steps.add(*sender, pending.parts, chunk))
            self._metrics.count("inserted_steps", self.ring.insert(chunk))
            self._metrics.count("inserted_chunks")
            self._metrics.count("inserted_episodes", _ended(chunk, self._spec))
        self._inbox.use(pending)

    def draw(self, request: SampleRequest, arrays: dict[str, np.ndarray]) -> int | None:
        if not self.ring.can_sample():
            return None
        count = self._draw(arrays)
        if self._offline:
            self._metrics.count("inserted_steps", len(arrays["key"]) / self._batch)
        if request.rows is not None:
            arrays["probability"] *= request.rows.share
        return count

    def _draw(self, arrays: dict[str, np.ndarray]) -> int:
        """Fills the arrays from the ring, and their ends from the auxiliary tables; returns the number of steps."""
        left, count, collected = len(arrays["key"]), 0, self._metrics.value("inserted_steps")
        for each in self._auxiliary:
            if rows := min(each.rows(len(arrays["key"]), collected), left):
                count += each.draw({name: array[left - rows : left] for name, array in arrays.items()}, self.ring.size)
                left -= rows
        if left:  # not of a single item, say
            count += self.ring.sample({name: array[:left] for name, array in arrays.items()})
        return count

    def adopt(self, counts: Counts) -> None:
        """Gives the learner's counts to the limiter of one of several shards."""
        if self.ring.shard_limiter is not None:
            self.ring.shard_limiter.adopt(counts)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        """Sets priorities [N] of keys [N]; returns how many. Skips evicted keys and invalid priorities."""
        if unfit := len(priorities) - int(np.count_nonzero(np.isfinite(priorities) & (priorities >= 0))):
            self._metrics.count("unfit_priorities", unfit)
        return sum(each.update_priorities(keys, priorities) for each in self._rings)

    def learners_changed(self, batch: int, leased: int) -> None:
        """Sets the limiter's slack for batches; without a learner inserts never wait."""
        self._batch = batch or self._batch
        self.ring.limiter.lease(leased * self._spec.chunk_length // leaves_per_chunk(self._spec))

    def writers_changed(self, present: list[Writer]) -> None:
        """Sets the limiter's slack for outstanding chunks, and the number of writers that share the receive budget."""
        self._writers = max(len(present), 1)
        sent = [min(self.credit_chunks(each), self.credit(each) // self._spec.chunk_bytes + 1) for each in present]
        self.ring.limiter.under_way = sum(sent) * self._spec.chunk_length

    def credit_chunks(self, writer: Writer) -> int:
        """The most chunks that a writer may have unacknowledged: enough that it need not wait for each acknowledgement."""
        return max(CHUNKS_OF_CREDIT, 2 * writer.streams)

    def credit(self, writer: Writer) -> int:
        """The same in bytes, but at most an equal share of the receive budget."""
        return min(self.credit_chunks(writer) * self._spec.chunk_bytes, self._config.receive_bytes // self._writers)

    def measure(self) -> None:
        ring, metrics = self.ring, self._metrics
        metrics.gauge("items", ring.size)
        metrics.gauge("capacity", ring.capacity)
        metrics.gauge("bytes", ring.used_bytes)
        low, high = (0.0, 0.0) if self._offline else (self._config.samples_per_insert_low, ring.limiter.most)
        metrics.gauge("samples_per_insert", ring.sampled_items / max(ring.size if self._offline else ring.inserted_items, 1))
        metrics.gauge("min_size", self._config.min_size)
        metrics.gauge("band_low", low)
        metrics.gauge("band_high", high)
        if self._demonstrations:
            metrics.gauge("demonstrations", self._demonstrations.size)
            metrics.gauge("demonstration_share", self._demonstrations.share(metrics.value("inserted_steps")))
        kept = (self._journal.figures() if self._journal else {}) | (self.human_steps.figures() if self.human_steps else {})
        for name, value in kept.items():
            metrics.gauge(name, value)


def _ended(chunk: Chunk, spec: ExperienceSpec) -> int:
    """The number of episodes that end in a chunk's own steps; those around them are other chunks' as well."""
    own = slice(spec.history, spec.history + chunk.length)
    terminated, truncated, valid = (chunk.columns[name][own] != 0 for name in ("terminated", "truncated", "valid"))
    return int(np.count_nonzero((terminated | truncated) & valid))
