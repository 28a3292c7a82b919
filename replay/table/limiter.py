"""Keeps the ratio of samples to inserts within a band: blocks inserts or samples."""

from __future__ import annotations

import math
import sys
import time

from transport.messages.replay import Counts

SPARE_SECONDS = 0.02  # a learner that gets no batch in this time has time to spare


class Limiter:
    """Below `min_size` items inserts are free and samples wait, unless the table is full. From then on, with I inserted and S
    sampled items since the learner connected:

        inserts wait while  S < low  * (I - under_way) - batches   and a learner is connected
        samples wait while  S > high * (I + under_way) + batches   (never, if high is infinite)

    `under_way` (items that actors may have sent) and `batches` (items that the learner may have requested) are slack. Without it
    both sides could wait for each other.

    A learner that waits for slow simulators gets a spare batch every SPARE_SECONDS while S and the spare samples are below
    `limit` per insert. Spare samples are not in S: once simulators are fast the band holds as if there had been none.
    """

    def __init__(self, min_size: int, low: float, high: float, limit: float = 0.0) -> None:
        """`low`, `high`, `limit`: samples per insert. Without a limit above `high` there are no spare samples."""
        self.min_size = min_size
        self.most = max(high, limit)
        self._low = low
        # JSON has no infinity, so a settings file has the largest float instead; multiplied with 0 inserts that would be 0.
        self._high = high if high < sys.float_info.max else math.inf
        self._limit = limit
        self.under_way = 0
        self.batches: float = 0
        self._inserted = 0
        self._sampled: float = 0
        self._spare = 0
        self._drawn_at = -math.inf
        self.learner_connected = False
        self.ended = False  # the run is being stopped: inserts never wait

    def lease(self, items: int) -> None:
        """All slots of all learners hold `items` now: more than before when one connects, 0 without learners."""
        more, self.batches = items > self.batches, items
        if more:
            self.connect_learner()
        elif not items:
            self.disconnect_learner()

    def connect_learner(self) -> None:
        """A learner connects: counting starts again, so that the time without a learner blocks neither side."""
        self.learner_connected = True
        self._rebase()

    def disconnect_learner(self) -> None:
        """Without a learner inserts never wait."""
        self.learner_connected = False

    def _rebase(self) -> None:
        self._inserted = 0
        self._sampled = 0
        self._spare = 0

    def can_insert(self, size: int) -> bool:
        """True if a chunk may be inserted into a table of `size` items."""
        if self.ended or not self.learner_connected or size < self.min_size:
            return True
        return self._sampled >= self._low * (self._inserted - self.under_way) - self.batches

    def can_sample(self, size: int) -> bool:
        """True if a batch may be drawn from a table of `size` items."""
        if size < self.min_size:
            return False
        return self._in_band() or (
            self._sampled + self._spare < self._limit * self._inserted and time.monotonic() >= self._drawn_at + SPARE_SECONDS
        )

    def _in_band(self) -> bool:
        return self._high == math.inf or self._sampled <= self._high * (self._inserted + self.under_way) + self.batches

    def inserted(self, count: int, size: int) -> None:
        """Counts inserted items; `size` is the size of the table afterwards."""
        if size >= self.min_size:
            self._inserted += count

    def sampled(self, count: int) -> None:
        if self._in_band():
            self._sampled += count
        else:
            self._spare += count
        self._drawn_at = time.monotonic()


class ShardLimiter(Limiter):
    """The limiter of one of several shards. It counts its own inserts, and as samples what the learner reports: those from all
    shards, times this shard's share of all inserts.

    So all shards block at the same samples per insert of the whole run, however unevenly priorities are spread over them, and a
    shard whose actors have left blocks no other process. Inserts are free until a learner draws: only the learner knows when
    all shards together hold enough. There are no spare samples.
    """

    def __init__(self, low: float, high: float) -> None:
        super().__init__(1, low, high)
        self._leased = 0
        self._own_inserted = self._own_sampled = 0

    @property
    def own(self) -> tuple[int, int]:
        """(items inserted into, items drawn from this shard) since a learner began to draw; (0, 0) before."""
        return (self._own_inserted, self._own_sampled) if self.learner_connected else (0, 0)

    def lease(self, items: int) -> None:
        """A learner that connects changes nothing before it draws."""
        self._leased = items
        if not items:
            self.disconnect_learner()

    def adopt(self, counts: Counts) -> None:
        if not self.learner_connected:
            self.connect_learner()
        self._inserted = self._own_inserted - counts.since
        self._sampled, self.batches = counts.sampled, self._leased * counts.inserts

    def inserted(self, count: int, size: int) -> None:
        super().inserted(count, size)
        self._own_inserted += count

    def sampled(self, count: int) -> None:
        self._own_sampled += count

    def _rebase(self) -> None:
        super()._rebase()
        self._own_inserted = self._own_sampled = 0
