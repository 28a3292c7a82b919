"""Human steps: an auxiliary table with the steps in which a person has steered an actor.

A chunk with human steps is inserted into the run's own table as any other, and here once more, where only these steps are drawn.
The newest `replay.human_capacity` of them stay when the run's own table evicts them, also over a restart: they have a log of
their own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from replay.config import ReplayConfig
from replay.log.journal import Journal
from replay.log.segments import segments
from replay.shards import KEY_BITS, Shard
from replay.table.auxiliary import AuxiliaryTable, unlimited
from replay.table.ring import Ring
from transport.experience import PERSON, Chunk, ExperienceSpec
from transport.messages.fields import MOST_SHARDS
from transport.messages.replay import Insert
from transport.metrics import Record
from transport.text import say

UPPER_KEYS = 1 << (KEY_BITS - 1)  # of demonstrations' keys: those that none of them has


def human_steps(spec: ExperienceSpec, chunk: Chunk) -> np.ndarray:
    """[length] bool: the items whose action a person chose."""
    own = slice(spec.history, spec.history + chunk.length)
    return (chunk.columns["policy_version"][own] == PERSON) & (chunk.columns["valid"][own] != 0)


class _HumanRing(Ring):
    """Draws human steps alone, or sequences with such steps."""

    def __init__(self, spec: ExperienceSpec, config: ReplayConfig, seed: int, shard: Shard) -> None:
        super().__init__(spec, config, seed, 0, Shard(MOST_SHARDS + shard.index))
        self._first_key |= UPPER_KEYS

    def _wanted(self, chunk: Chunk) -> np.ndarray:
        return human_steps(self.spec, chunk)


class HumanSteps(AuxiliaryTable):
    def __init__(
        self,
        spec: ExperienceSpec,
        config: ReplayConfig,
        seed: int,
        shard: Shard,
        folder: Path | None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Restores what is in `folder`; None: nothing is kept on disk. Raises LogRefused, RestoreStopped, OSError."""
        chunks = max(-(-config.human_capacity // spec.chunk_length), 1)
        own = unlimited(config, spec, chunks)
        super().__init__(_HumanRing(spec, own, seed, shard), seed)
        self._config, self._folder, self._interrupted = own, folder, interrupted
        self._journal: Journal | None = None  # from the first chunk on: most runs have none
        if folder is not None and segments(folder):
            self._open(folder)

    def share(self, steps: float) -> float:
        return self._config.human_share if self.size else 0.0

    def rows(self, batch: int, steps: float) -> int:
        """Not more than there are items: one would otherwise be many times in a batch."""
        return min(super().rows(batch, steps), self.ring.items_to_draw)

    def add(self, writer: str, incarnation: int, message: Insert, parts: list[bytes], chunk: Chunk) -> int:
        """Keeps a chunk if it has human steps; returns how many."""
        steps = int(human_steps(self.ring.spec, chunk).sum())
        if not steps:
            return 0
        if self._journal is None and self._folder is not None:
            try:
                self._open(self._folder)
            except (OSError, ValueError) as error:
                self._folder = None
                say(f"human steps are kept in memory only: {error}")
        if self._journal is not None:
            self._journal.append(writer, incarnation, message, parts)
        self.ring.insert(chunk)
        return steps

    def turn(self) -> None:
        if self._journal is not None:
            self._journal.turn(dict)

    def close(self) -> str:
        """As of Journal."""
        return self._journal.close(dict) if self._journal is not None else ""

    def figures(self) -> Record:
        return {"human_items": self.size, "human_share": self.share(0)} if self.size else {}

    def _open(self, folder: Path) -> None:
        self._journal = Journal(folder, self.ring, self._config, self._interrupted, "human steps")
