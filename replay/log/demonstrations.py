"""Demonstrations: experience of others, which lies beside the run's own and is drawn with it.

A share of each batch comes from them, as in Ball et al. 2023 (arXiv:2302.02948). They are never evicted, and do not count as
inserted or sampled: the limiter's band is of the run's own experience.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np

from replay.config import ReplayConfig
from replay.log.files import open_regular
from replay.log.segments import LoggedChunk, Scan, read_chunk, scan_segment, segments
from replay.shards import Shard
from replay.table.inbox import RejectedChunk, check_chunk
from replay.table.layout import overhead_bytes, slot_bytes
from replay.table.ring import Ring
from transport.compression import CorruptChunk
from transport.experience import Chunk, ExperienceSpec
from transport.messages.fields import MOST_SHARDS

SPARE_CHUNKS = 4


def filled_ring(folder: Path, spec: ExperienceSpec, config: ReplayConfig, seed: int, part: Shard, place: Shard) -> Ring:
    """A ring that holds the chunks in a folder of segments, or this equal `part` of them, and waits for no inserts; its keys are
    those of `place`. Raises ValueError for a folder without chunks of this spec, OSError."""
    entries = _entries(folder, spec)[part.index :: part.count]
    if not entries:
        raise ValueError(f"{folder} holds fewer chunks of demonstrations than there are shards: take fewer, or more episodes")
    ring = Ring(spec, unlimited(config, spec, len(entries)), seed, 0, place)
    for key, chunk in enumerate(_chunks(entries, spec)):  # without gaps, which would evict
        ring.restore(key, chunk)
    return ring


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


class Beside:
    """Experience in a ring of its own, of which each batch has a share. Its keys are above those of the run's items."""

    def __init__(self, ring: Ring, seed: int) -> None:
        self.ring = ring
        self._random = np.random.default_rng(seed)

    @property
    def size(self) -> int:
        """Items."""
        return self.ring.size

    @property
    def memory_bytes(self) -> int:
        return self.ring.capacity_bytes

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

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        """As of Ring; other keys are skipped."""
        return self.ring.update_priorities(keys, priorities)


class Demonstrations(Beside):
    """Filled once from a folder of segments."""

    def __init__(self, folder: Path, spec: ExperienceSpec, config: ReplayConfig, seed: int, shard: Shard) -> None:
        """Each of several shards has an equal part. Raises ValueError for a folder without chunks of this spec, OSError."""
        super().__init__(filled_ring(folder, spec, config, seed, shard, Shard(MOST_SHARDS + shard.index)), seed)
        self._share, self._steps = config.demonstration_share, config.demonstration_steps

    def share(self, steps: float) -> float:
        return self._share * max(1 - steps / self._steps, 0.0) if self._steps else self._share


def ring_bytes(folder: Path, spec: ExperienceSpec) -> int:
    """What these demonstrations take as a ring. Raises ValueError for a folder that is damaged, OSError."""
    return (len(_entries(folder, spec)) + SPARE_CHUNKS) * slot_bytes(spec)


def check(folder: Path, spec: ExperienceSpec) -> None:
    """Raises ValueError for a folder that is damaged, OSError."""
    for _ in _chunks(_entries(folder, spec), spec):
        pass


def _entries(folder: Path, spec: ExperienceSpec) -> list[LoggedChunk]:
    found = Scan()
    for path in segments(folder):
        scan_segment(path, spec, found)
    if not found.entries or found.damaged or found.torn:
        raise ValueError(
            f"{folder} is damaged: `headrace fsck RUN --repair` sets it aside, and the next start reads the data set again"
        )
    return found.entries


def _chunks(entries: list[LoggedChunk], spec: ExperienceSpec) -> Iterator[Chunk]:
    for path, own in groupby(entries, lambda entry: entry.path):
        with open_regular(path) as file:
            for entry in own:
                try:
                    chunk = read_chunk(file, entry, spec)
                    check_chunk(spec, chunk)
                except (CorruptChunk, RejectedChunk) as error:
                    raise ValueError(
                        f"{path} has a damaged chunk ({error}): `headrace fsck RUN --repair` sets it aside"
                    ) from error
                yield chunk
