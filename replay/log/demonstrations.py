"""Demonstrations: an auxiliary table with the experience of others, which is never evicted.

A share of each batch comes from it, as in Ball et al. 2023 (arXiv:2302.02948).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from replay.config import ReplayConfig
from replay.log.files import open_regular
from replay.log.segments import LoggedChunk, Scan, read_chunk, scan_segment, segments
from replay.shards import Shard
from replay.table.auxiliary import SPARE_CHUNKS, AuxiliaryTable, unlimited
from replay.table.inbox import RejectedChunk, check_chunk
from replay.table.layout import slot_bytes
from replay.table.ring import Ring
from transport.compression import CorruptChunk
from transport.experience import Chunk, ExperienceSpec
from transport.messages.fields import MOST_SHARDS


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


class Demonstrations(AuxiliaryTable):
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
