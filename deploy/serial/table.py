"""Replay's table in this process: chunks go in, batches come out, and nothing travels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from deploy.serial.reports import ACTOR
from replay.client.sampler import BatchSampler, SampledBatch
from replay.config import ReplayProcess
from replay.server.learners import collected
from replay.server.server import make_tables
from replay.table.inbox import Writer
from transport.compression import crc32, pack_chunk
from transport.experience import Chunk, ExperienceSpec
from transport.messages.replay import Insert, SampleRequest
from transport.metrics import Metrics
from transport.text import say


class TableSampler(BatchSampler):
    """Draws a batch whenever the table allows one, and calls `collect` while it does not. So environments take as many steps as
    the limiter's band needs, and the samples per insert are those of its upper end. Where it has none, the table always allows a
    batch: then `collect` is called once for each, unless inserts wait for more samples."""

    def __init__(
        self,
        spec: ExperienceSpec,
        settings: ReplayProcess,
        streams: int,
        batch_size: int,
        slots: int,
        metrics: Metrics,
        collect: Callable[[], None],
        demonstrations: Path | None = None,
    ) -> None:
        """`streams`: environments. `collect` steps them and calls `insert`. Raises ValueError, SlabError."""
        super().__init__(spec, batch_size, slots)
        # Spare samples depend on the time, and so would the weights.
        config = msgspec.structs.replace(settings.replay, samples_per_insert_limit=0.0)
        settings = msgspec.structs.replace(settings, replay=config)
        self._inbox, self.table, self._items, _ = make_tables(spec, settings, metrics, None, lambda: False, demonstrations)
        self._spec, self._metrics, self._collect = spec, metrics, collect
        # JSON has no infinity.
        self._endless = self._items is not None and self._items.ring.limiter.most >= sys.float_info.max
        self._writer = Writer(ACTOR, 0, streams, b"", 0, 0)
        self._request: SampleRequest | None = None  # whose slot is being filled
        self.table.learners_changed(batch_size, batch_size)

    def insert(self, chunk: Chunk) -> None:
        """Puts a chunk where the table takes it from, as soon as the limiter allows that."""
        parts = pack_chunk(self._spec, chunk)
        self._inbox.put(self._writer, Insert(self._writer.received, chunk.stream, chunk.length, crc32(parts)), parts)
        self._insert_waiting()

    def answer(self, batch: SampledBatch, priorities: np.ndarray) -> None:
        self.update_priorities(batch.arrays["key"], priorities)
        self.release(batch)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        if self._items:
            self._metrics.count("stale_priorities", len(keys) - self._items.update_priorities(keys, priorities))

    def close(self) -> None:
        self._ready.clear()
        self._slab.close()

    def _receive(self, timeout_seconds: float) -> None:
        if self._ready:
            return
        if self._draw():
            if self._endless and not self.table.blocked:
                self._collect()
        elif timeout_seconds:
            self._collect()
            self._draw()

    def _draw(self) -> bool:
        """Fills a slot if the table allows it. True when a batch is ready."""
        self._insert_waiting()
        if self._request is None:
            if not self._free:
                return False
            self._generation += 1
            self._request = SampleRequest(self._free.pop(), self._generation, self.oldest_version)
        slot, arrays = self._request.slot, self._slab.slots[self._request.slot]
        items = self.table.draw(self._request, arrays)
        self._report_rejected()
        if items is None:
            return False
        self._metrics.count("sampled_items", items)
        self.episodes, self.steps = int(self._metrics.value("inserted_episodes")), [collected(self._metrics)]
        self._ready.append(SampledBatch(slot, self._request.generation, arrays))
        self._request = None
        return True

    def _insert_waiting(self) -> None:
        while self._items and self._inbox.pending and not self.table.blocked:
            self._items.insert()

    def _report_rejected(self) -> None:
        if self._writer.fault:
            say(f"replay: a chunk was rejected: {self._writer.fault}")
            self._writer.fault = ""

    def _request_free(self) -> None:
        """A free slot is filled when the next batch is asked for."""

    def _send_answers(self) -> None:
        """There are none."""
