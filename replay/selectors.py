"""How items are drawn. A selector knows leaves (places of items in the ring) and their priorities, not what lies there."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from replay.sum_tree import SumTree

SMALLEST_PRIORITY = 1e-6  # an item with no error left must stay drawable


class SelectorState(NamedTuple):
    """What a selector remembers of its leaves; enough to go on in another process."""

    kind: str  # "prioritised" or "fifo": the values of one mean nothing to the other
    values: np.ndarray  # [leaves] float64: raised priorities, or 1 where an item has not been drawn yet
    exponent: float
    highest: float
    random: dict[str, Any]  # the generator's state; empty where nothing is random


class Selector(Protocol):
    """Leaves come and go in aligned blocks (a chunk), one entry per row; entries where `drawable` is False are never drawn."""

    def insert(self, first: int, drawable: np.ndarray, priorities: np.ndarray) -> None:
        """A block of leaves is new; `drawable` [L] bool, `priorities` [L] float64 and at least 0, NaN where none is known."""

    def evict(self, first: int, length: int) -> None:
        """A block of leaves is gone."""

    def sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Leaves [count] int64 and the probability [count] float64 with which each was drawn."""

    def update(self, leaves: np.ndarray, priorities: np.ndarray) -> None:
        """New priorities [N] of drawable leaves [N]."""

    def available(self) -> int:
        """Items that `sample` could return now; a with-replacement selector has as many as it likes once it has one."""

    def state(self) -> SelectorState:
        """A copy, to be restored from."""

    def begin_from(self, state: SelectorState) -> None:
        """Before any block is inserted: takes up what concerns all leaves."""

    def restore(self, leaves: np.ndarray, values: np.ndarray, state: SelectorState) -> None:
        """Drawable leaves [N] get their values [N] back, which are from `state`."""


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

    def insert(self, first: int, drawable: np.ndarray, priorities: np.ndarray) -> None:
        """An item whose priority is not known comes with the highest seen."""
        known = drawable & ~np.isnan(priorities)
        raised = self._raise(priorities[known])  # first of all: the highest may be among them
        values = np.where(drawable, self._highest, 0.0)
        values[known] = raised
        self._tree.set_block(first, values)
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
        """New ones count as much as those that items came with."""
        if not self._exponent:
            return
        self._tree.set(leaves, self._raise(priorities))

    def _raise(self, priorities: np.ndarray) -> np.ndarray:
        """To the exponent; keeps the highest."""
        raised = np.maximum(priorities.astype(np.float64), SMALLEST_PRIORITY) ** self._exponent
        self._highest = max(self._highest, float(raised.max(initial=0.0)))
        return raised

    def available(self) -> int:
        """With replacement."""
        return self._drawable

    def state(self) -> SelectorState:
        """The leaves as they stand in the tree."""
        return SelectorState(
            "prioritised", self._tree.all(), self._exponent, self._highest, dict(self._generator.bit_generator.state)
        )

    def begin_from(self, state: SelectorState) -> None:
        """The highest priority and the random generator."""
        if self._knows(state):
            self._highest = float(self._convert(np.array(state.highest), state))
        if state.random:
            self._generator.bit_generator.state = state.random

    def restore(self, leaves: np.ndarray, values: np.ndarray, state: SelectorState) -> None:
        """Exactly the values of the tree before, unless the exponent has changed since."""
        if self._knows(state):
            self._tree.set(leaves, self._convert(values, state))

    def _knows(self, state: SelectorState) -> bool:
        """Whether there are priorities to be had: a uniform selector neither leaves nor takes any."""
        return state.kind == "prioritised" and state.exponent > 0 and self._exponent > 0

    def _convert(self, values: np.ndarray, state: SelectorState) -> np.ndarray:
        return values if state.exponent == self._exponent else values ** (self._exponent / state.exponent)


class Fifo:
    """Oldest first, each item once."""

    def __init__(self, leaves: int) -> None:
        """Leaves are inserted in ring order."""
        self._drawable = np.zeros(leaves, bool)
        self._order: list[tuple[int, int]] = []  # blocks not yet wholly drawn: (first leaf, length)

    def insert(self, first: int, drawable: np.ndarray, priorities: np.ndarray) -> None:
        """Queued behind everything else, whatever its priority."""
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

    def state(self) -> SelectorState:
        """Which items have not been drawn."""
        return SelectorState("fifo", self._drawable.astype(np.float64), 0.0, 0.0, {})

    def begin_from(self, state: SelectorState) -> None:
        """Nothing concerns all leaves."""

    def restore(self, leaves: np.ndarray, values: np.ndarray, state: SelectorState) -> None:
        """What was drawn is not drawn again, as far as the state knows of it."""
        if state.kind == "fifo":
            self._drawable[leaves] = values > 0
            self._order = [(first, length) for first, length in self._order if self._drawable[first : first + length].any()]


def make_selector(name: str, leaves: int, exponent: float, generator: np.random.Generator) -> Selector:
    """The selector that the configuration names; "uniform" is prioritised with exponent 0, on the same tree."""
    if name == "fifo":
        return Fifo(leaves)
    return Prioritised(leaves, exponent if name == "prioritised" else 0.0, generator)
