"""Divides a learner's draws among replay's shards, and keeps the counts of their limiters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from transport.messages.replay import Counts, ShardFigures

COUNT_SECONDS = 60.0
NOTHING = ShardFigures(0.0, 0, False, 0, 0, 0)


def divide(rows: int, totals: Sequence[float], uniform: float) -> list[int]:
    """The number of rows for each shard: rows * total / sum(totals) on average, rounded up or down.

    `uniform` is a random number in [0, 1). Systematic sampling: the sum is always `rows`, so the mean over `uniform` is exact. At
    least one total is above 0; a shard whose total is 0 gets no row.
    """
    able = [index for index, total in enumerate(totals) if total > 0]
    ends = np.cumsum([totals[index] for index in able])
    whole = np.floor(ends * (rows / ends[-1]) + uniform).astype(int)
    whole[-1] = rows
    counts = [0] * len(totals)
    for index, count in zip(able, np.diff(whole, prepend=0).tolist(), strict=True):
        counts[index] = count
    return counts


class Ledger:
    """The inserts and draws of all shards since the learner began to count.

    Counting begins anew when a shard is a new process or had lost the learner, and, at most once in COUNT_SECONDS, when actors
    have come or gone. Otherwise the limiter would block the others until that shard had inserted as much as before.
    """

    def __init__(self, shards: int) -> None:
        self._figures = [NOTHING] * shards
        self._began = [NOTHING] * shards
        self._began_at = -math.inf
        self._changed = False

    def new(self, shard: int) -> None:
        """A shard counts from 0 again."""
        self._figures[shard] = NOTHING
        self._began, self._began_at = list(self._figures), -math.inf

    def on_figures(self, shard: int, figures: ShardFigures, now: float) -> None:
        if figures.inserted < self._figures[shard].inserted:  # the same process, after a broken connection to the learner
            self.new(shard)
        self._changed |= figures.under_way != self._figures[shard].under_way
        self._figures[shard] = figures
        if self._changed and now >= self._began_at + COUNT_SECONDS:
            self._began, self._began_at, self._changed = list(self._figures), now, False

    def counts(self, shard: int) -> Counts:
        """The counts for the limiter of a shard."""
        pairs = list(zip(self._figures, self._began, strict=True))
        inserted = sum(max(now.inserted - then.inserted, 0) for now, then in pairs)
        sampled = sum(max(now.sampled - then.sampled, 0) for now, then in pairs)
        since = self._began[shard].inserted
        own = max(self._figures[shard].inserted - since, 0)
        inserts = own / inserted if inserted else 1 / len(pairs)
        return Counts(since, sampled * inserts, inserts)
