"""Sums of priorities, and the leaf under a given cumulative sum; both for many leaves at once."""

from __future__ import annotations

import numpy as np


class SumTree:
    """A complete binary tree over non-negative leaves, as one array: node i has the children 2i and 2i + 1.

    float64, because in float32 rounding can select a leaf of priority zero. Parents are recomputed from their children and never
    adjusted, so rounding does not drift.
    """

    def __init__(self, leaves: int) -> None:
        """All leaves begin at zero."""
        self.first_leaf = 1 << max(leaves - 1, 0).bit_length()
        self.leaves = leaves
        self._sums = np.zeros(2 * self.first_leaf, np.float64)

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self._sums[1])

    def get(self, leaves: np.ndarray) -> np.ndarray:
        """Values [N] of leaves [N]."""
        return self._sums[leaves + self.first_leaf]

    def all(self) -> np.ndarray:
        """A copy of the values [leaves] of all leaves."""
        return self._sums[self.first_leaf : self.first_leaf + self.leaves].copy()

    def set(self, leaves: np.ndarray, values: np.ndarray) -> None:
        """Writes values [N] to leaves [N] (int64); of duplicates the last wins."""
        if len(leaves) == 0:
            return
        sums = self._sums
        nodes = leaves + self.first_leaf
        sums[nodes] = values
        while nodes[0] > 1:  # all leaves are on one level, so all nodes reach the root in the same turn
            nodes = nodes >> 1
            # Duplicates cost a little arithmetic; removing them (a sort) costs more, except near the root.
            if len(nodes) > 64 and nodes[0] < 4 * len(nodes):
                nodes = np.unique(nodes)
            sums[nodes] = sums[2 * nodes] + sums[2 * nodes + 1]

    def set_block(self, first: int, values: np.ndarray) -> None:
        """Writes values [L] to the leaves first … first + L - 1, by slices; L is a power of two that divides first."""
        sums = self._sums
        start = first + self.first_leaf
        level = values
        while True:
            sums[start : start + len(level)] = level
            if len(level) == 1:
                break
            level = level[0::2] + level[1::2]
            start >>= 1
        while start > 1:
            start >>= 1
            sums[start] = sums[2 * start] + sums[2 * start + 1]

    def find(self, targets: np.ndarray) -> np.ndarray:
        """For targets [N] in [0, total): the first leaf [N] (int64) at which the cumulative sum exceeds the target."""
        sums = self._sums
        nodes = np.ones(len(targets), np.int64)
        targets = targets.astype(np.float64)
        while nodes.size and nodes[0] < self.first_leaf:
            nodes *= 2
            left = sums[nodes]
            # Where rounding has carried a target past a node's sum, an empty right branch must not be entered.
            right = (targets >= left) & (sums[nodes + 1] > 0)
            targets -= left * right
            nodes += right
        return nodes - self.first_leaf
