"""A second table of experience, of which each batch has a share: demonstrations or human steps."""

from __future__ import annotations

import sys

import msgspec
import numpy as np

from replay.config import ReplayConfig
from replay.table.layout import overhead_bytes, slot_bytes
from replay.table.ring import Ring
from transport.experience import ExperienceSpec

SPARE_CHUNKS = 4


def unlimited(config: ReplayConfig, spec: ExperienceSpec, chunks: int) -> ReplayConfig:
    """Of a ring for so many chunks from which any number of items may be drawn at any time."""
    return msgspec.structs.replace(
        config,
        capacity=chunks * spec.chunk_length,
        min_size=1,
        budget_bytes=overhead_bytes(spec, config, 0) + (chunks + SPARE_CHUNKS) * slot_bytes(spec),
        samples_per_insert_low=0.0,
        samples_per_insert_high=sys.float_info.max,
        samples_per_insert_limit=0.0,
    )


class AuxiliaryTable:
    """Its keys are above those of the run's items. What it holds does not count as inserted or sampled: the limiter's band is of
    the run's own experience."""

    def __init__(self, ring: Ring, seed: int) -> None:
        self.ring = ring
        self._random = np.random.default_rng(seed)

    @property
    def size(self) -> int:
        """Items."""
        return self.ring.size

    def share(self, steps: float) -> float:
        """Of a batch, when the run has collected `steps`."""
        raise NotImplementedError

    def rows(self, batch: int, steps: float) -> int:
        """Of a batch; rounded at random, so that the mean is the share."""
        return int(batch * self.share(steps) + self._random.random())

    def draw(self, arrays: dict[str, np.ndarray], own_items: int) -> int:
        """Fills the arrays of `layout`. An item's probability is what it would be among the run's own items, so that importance
        weights correct for priorities alone, not for the share."""
        count = self.ring.sample(arrays)
        arrays["probability"] *= self.size / max(own_items, 1)
        return count
