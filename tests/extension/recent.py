"""A selector of another package: items are drawn evenly from the newest chunks."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta, Struct

from replay.table.base import SelectorState


class RecentConfig(Struct, frozen=True, forbid_unknown_fields=True):
    blocks: Annotated[int, Meta(ge=1)] = 4  # chunks that are drawn from


class Recent:
    Config: ClassVar[type[Struct]] = RecentConfig

    def __init__(self, leaves: int, random: np.random.Generator, config: RecentConfig) -> None:
        self._drawable = np.zeros(leaves, bool)
        self._random, self._config = random, config
        self._blocks: list[np.ndarray] = []  # drawable leaves of each chunk, newest last

    def insert(self, first: int, drawable: np.ndarray, priorities: np.ndarray) -> None:
        self._drawable[first : first + len(drawable)] = drawable
        if drawable.any():
            self._blocks.append(first + np.flatnonzero(drawable))

    def evict(self, first: int, length: int) -> None:
        self._drawable[first : first + length] = False
        self._blocks = [block for block in self._blocks if not first <= block[0] < first + length]

    def sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        leaves = np.concatenate(self._blocks[-self._config.blocks :])
        return self._random.choice(leaves, count), np.full(count, 1 / len(leaves))

    def update(self, leaves: np.ndarray, priorities: np.ndarray) -> None:
        """Priorities do not count."""

    def state(self) -> SelectorState:
        return SelectorState(self._drawable.astype(np.float64), {"blocks": self._config.blocks})

    def resume(self, numbers: dict[str, Any]) -> None:
        if "blocks" not in numbers:
            raise ValueError("no number of blocks")

    def restore(self, leaves: np.ndarray, values: np.ndarray) -> None:
        """The inserts said it all."""
