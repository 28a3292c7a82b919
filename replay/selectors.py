"""How items are drawn. A selector knows leaves (places of items in the ring) and their priorities, not what lies there."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from replay.sum_tree import SumTree

SMALLEST_PRIORITY = 1e-6  # an item with no error left must stay drawable


class Selector(Protocol):
    """Leaves come and go in aligned blocks (a chunk), one entry per row; entries where `drawable` is False are never drawn."""

    def insert(self, first: int, drawable: np.ndarray) -> None:
        """A block of leaves is new; `drawable` [L] bool."""

    def evict(self, first: int, length: int) -> None:
        """A block of leaves is gone."""

    def sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Leaves [count] int64 and the probability [count] float64 with which each was drawn."""

    def update(self, leaves: np.ndarray, priorities: np.ndarray) -> None:
        """New priorities [N] of drawable leaves [N]."""

    def available(self) -> int:
        """Items that `sample` could return now; a with-replacement selector has as many as it likes once it has one."""


class Prioritised:
    """Proportional to priority ** exponent; an item without a priority gets the highest seen so far.

    Schaul et al. 2016 (arXiv 1511.05952), section 3.3, with their stratified draw (appendix B.2.1).
    """

    def __init__(self, leaves: int, exponent: float, generator: np.random.Generator) -> None:
        """`exponent` 0 draws uniformly."""
        self._tree = SumTree(leaves)
        self._exponent = exponent
        self._generator = generator
        self._highest = 1.0  # already raised to the exponent
        self._drawable = 0

    def insert(self, first: int, drawable: np.ndarray) -> None:
        """New items come with the highest priority seen."""
        self._tree.set_block(first, np.where(drawable, self._highest, 0.0))
        self._drawable += int(drawable.sum())

    def evict(self, first: int, length: int) -> None:
        """Priority zero is never drawn."""
        self._drawable -= int((self._tree.get(np.arange(first, first + length)) > 0).sum())
        self._tree.set_block(first, np.zeros(length))

    def sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """One draw from each of `count` equal strata of the cumulative priority."""
        total = self._tree.total
        strata = (np.arange(count) + self._generator.random(count)) * (total / count)
        leaves = self._tree.find(strata)
        return leaves, self._tree.get(leaves) / total

    def update(self, leaves: np.ndarray, priorities: np.ndarray) -> None:
        """Raises to the exponent; keeps the highest."""
        if not self._exponent:
            return
        raised = np.maximum(priorities.astype(np.float64), SMALLEST_PRIORITY) ** self._exponent
        self._highest = max(self._highest, float(raised.max(initial=0.0)))
        self._tree.set(leaves, raised)

    def available(self) -> int:
        """With replacement."""
        return self._drawable


class Fifo:
    """Oldest first, each item once."""

    def __init__(self, leaves: int) -> None:
        """Leaves are inserted in ring order."""
        self._drawable = np.zeros(leaves, bool)
        self._order: list[tuple[int, int]] = []  # blocks not yet wholly drawn: (first leaf, length)

    def insert(self, first: int, drawable: np.ndarray) -> None:
        """Queued behind everything else."""
        self._drawable[first : first + len(drawable)] = drawable
        self._order.append((first, len(drawable)))

    def evict(self, first: int, length: int) -> None:
        """Gone, drawn or not."""
        self._drawable[first : first + length] = False
        self._order = [block for block in self._order if block[0] != first]

    def sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The oldest `count` items not yet drawn; the probability of each is 1."""
        leaves: list[np.ndarray] = []
        missing = count
        while missing:
            first, length = self._order[0]
            found = first + np.flatnonzero(self._drawable[first : first + length])[:missing]
            self._drawable[found] = False
            leaves.append(found)
            missing -= len(found)
            if missing or not self._drawable[first : first + length].any():
                self._order.pop(0)
        return np.concatenate(leaves), np.ones(count)

    def update(self, leaves: np.ndarray, priorities: np.ndarray) -> None:
        """Priorities mean nothing here."""

    def available(self) -> int:
        """Items not drawn yet."""
        return int(self._drawable.sum())


def make_selector(name: str, leaves: int, exponent: float, generator: np.random.Generator) -> Selector:
    """The selector that the configuration names; "uniform" is prioritised with exponent 0, on the same tree."""
    if name == "fifo":
        return Fifo(leaves)
    return Prioritised(leaves, exponent if name == "prioritised" else 0.0, generator)
