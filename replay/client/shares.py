"""How a learner divides its draws among replay's shards, and what it tells their limiters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transport.messages import ShardFigures


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
    """What all shards together have inserted and drawn since the learner began to draw.

    A shard that was restarted reports from 0 again; what it did before still counts.
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._inserted = self._sampled = 0

    def heard(self, before: ShardFigures | None, now: ShardFigures) -> None:
        """`before`: the shard's last figures; None where it is a new process."""
        self._inserted += _more(before.inserted if before else 0, now.inserted)
        self._sampled += _more(before.sampled if before else 0, now.sampled)

    def counted(self, figures: ShardFigures | None) -> tuple[float, float]:
        """(sampled, inserts) as in the message Counted, for a shard with these figures."""
        if not self._inserted:
            return self._sampled / self._shards, 1 / self._shards
        inserts = (figures.inserted if figures else 0) / self._inserted
        return self._sampled * inserts, inserts


def _more(before: int, now: int) -> int:
    return now - before if now >= before else now
