"""Keeps samples per insert within a band, by making one side or the other wait."""

from __future__ import annotations

import math
import sys


class Limiter:
    """Both sides are free until `min_size` items are there (but nothing is sampled before).

    From then on, counted since the last rebase, with I inserted items and S sampled items:

        inserts wait while  S < low  * (I - under_way) - batches   and a learner is connected (a dead one never stops actors)
        samples wait while  S > high * (I + under_way) + batches   (never, if high is infinite)

    `under_way` (items that actors may have sent) and `batches` (samples that the learner may have asked for) are the slack
    without which the two sides could wait for each other.
    """

    def __init__(self, min_size: int, low: float, high: float) -> None:
        """`low`, `high`: samples per insert."""
        self._min_size = min_size
        self._low = low
        # JSON has no infinity: in a settings file the largest number stands for it, and that times no insert would be 0.
        self._high = high if high < sys.float_info.max else math.inf
        self.under_way = 0
        self.batches = 0
        self._inserted = 0
        self._sampled = 0
        self.learner_connected = False

    def connect_learner(self) -> None:
        """A learner is there (again): counting begins anew, so that its absence blocks neither side."""
        self.learner_connected = True
        self._rebase()

    def disconnect_learner(self) -> None:
        """No learner: inserts never wait."""
        self.learner_connected = False

    def _rebase(self) -> None:
        self._inserted = 0
        self._sampled = 0

    def can_insert(self, size: int) -> bool:
        """Whether a chunk may be inserted into a table of `size` items."""
        if not self.learner_connected or size < self._min_size:
            return True
        return self._sampled >= self._low * (self._inserted - self.under_way) - self.batches

    def can_sample(self, size: int) -> bool:
        """Whether a batch may be drawn from a table of `size` items."""
        if size < self._min_size:
            return False
        return self._high == math.inf or self._sampled <= self._high * (self._inserted + self.under_way) + self.batches

    def inserted(self, count: int, size: int) -> None:
        """`count` items were inserted; the table then had `size`."""
        if size >= self._min_size:
            self._inserted += count

    def sampled(self, count: int) -> None:
        """`count` items were sampled."""
        self._sampled += count
