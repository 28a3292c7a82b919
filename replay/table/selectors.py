"""How items are drawn. A selector knows leaves (places of items in the ring) and their priorities, not what lies there."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from replay.table.sum_tree import SumTree

SMALLEST_PRIORITY = 1e-6  # an item with no error left must stay drawable


class SelectorState(NamedTuple):
    """What a selector remembers of its leaves; enough to go on in another process."""

    values: np.ndarray  # [leaves] float64: raised priorities
    exponent: float
    highest: float
    random: dict[str, Any]  # the generator's state


class Prioritised:
    """Proportional to priority ** exponent; an item without a priority gets the highest seen so far.

    Schaul et al. 2016 (arXiv 1511.05952), section 3.3, with their stratified draw (appendix B.2.1). Leaves come and go in
    aligned blocks (a chunk), one entry per row; entries where `drawable` is False are never drawn.
    """

    def __init__(self, leaves: int, exponent: float, generator: np.random.Generator) -> None:
        """`exponent` 0 draws uniformly."""
        self._tree = SumTree(leaves)
        self._exponent = exponent
        self._generator = generator
        self._highest = 1.0  # already raised to the exponent
        self._drawable = 0

    def insert(self, first: int, drawable: np.ndarray, priorities: np.ndarray) -> None:
        """A block of leaves is new; `drawable` [L] bool, `priorities` [L] float64 and at least 0, NaN where none is known.

        An item whose priority is not known comes with the highest seen.
        """
        known = drawable & ~np.isnan(priorities)
        raised = self._raise(priorities[known])  # first of all: the highest may be among them
        values = np.where(drawable, self._highest, 0.0)
        values[known] = raised
        self._tree.set_block(first, values)
        self._drawable += int(drawable.sum())

    def evict(self, first: int, length: int) -> None:
        """A block of leaves is gone: priority zero is never drawn."""
        self._drawable -= int((self._tree.get(np.arange(first, first + length)) > 0).sum())
        self._tree.set_block(first, np.zeros(length))

    def sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Leaves [count] int64 and the probability [count] float64 with which each was drawn.

        One draw from each of `count` equal strata of the cumulative priority.
        """
        total = self._tree.total
        strata = (np.arange(count) + self._generator.random(count)) * (total / count)
        leaves = self._tree.find(strata)
        return leaves, self._tree.get(leaves) / total

    def update(self, leaves: np.ndarray, priorities: np.ndarray) -> None:
        """New priorities [N] of drawable leaves [N] count as much as those that items came with."""
        if not self._exponent:
            return
        self._tree.set(leaves, self._raise(priorities))

    def _raise(self, priorities: np.ndarray) -> np.ndarray:
        """To the exponent; keeps the highest."""
        raised = np.maximum(priorities.astype(np.float64), SMALLEST_PRIORITY) ** self._exponent
        self._highest = max(self._highest, float(raised.max(initial=0.0)))
        return raised

    def available(self) -> int:
        """Items that can be drawn."""
        return self._drawable

    def state(self) -> SelectorState:
        """A copy of the leaves as they stand in the tree, to be restored from."""
        return SelectorState(self._tree.all(), self._exponent, self._highest, dict(self._generator.bit_generator.state))

    def begin_from(self, state: SelectorState) -> None:
        """Before any block is inserted: takes up the highest priority and the random generator."""
        if self._knows(state):
            self._highest = float(self._convert(np.array(state.highest), state))
        self._generator.bit_generator.state = state.random

    def restore(self, leaves: np.ndarray, values: np.ndarray, state: SelectorState) -> None:
        """Drawable leaves [N] get their values [N] back, exactly, unless the exponent has changed since."""
        if self._knows(state):
            self._tree.set(leaves, self._convert(values, state))

    def _knows(self, state: SelectorState) -> bool:
        """Whether there are priorities to be had: a uniform selector neither leaves nor takes any."""
        return state.exponent > 0 and self._exponent > 0

    def _convert(self, values: np.ndarray, state: SelectorState) -> np.ndarray:
        return values if state.exponent == self._exponent else values ** (self._exponent / state.exponent)


def make_selector(name: str, leaves: int, exponent: float, generator: np.random.Generator) -> Prioritised:
    """The selector of items that the configuration names; "uniform" is prioritised with exponent 0, on the same tree."""
    return Prioritised(leaves, exponent if name == "prioritised" else 0.0, generator)
