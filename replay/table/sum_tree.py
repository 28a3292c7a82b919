"""A sum tree over priorities: updates, and finds the leaf at a cumulative sum, for many leaves at once."""

from __future__ import annotations

import numpy as np

ROOTS = 4096  # with batches of 512, one cumulative sum over these nodes is faster than the tree levels that it replaces


class SumTree:
    """Binary trees over non-negative leaves in one array: node i has children 2i and 2i + 1; nodes R … 2R - 1 are the roots.

    float64, because with float32 rounding can select a leaf of priority zero. A parent is always recomputed from its children, so
    rounding errors do not accumulate.
    """

    def __init__(self, leaves: int, roots: int = ROOTS) -> None:
        """All leaves start at zero. `roots`: the most roots, a power of two."""
        self.first_leaf = 1 << max(leaves - 1, 0).bit_length()
        self.leaves = leaves
        self._sums = np.zeros(2 * self.first_leaf, np.float64)
        self._first_root = min(roots, self.first_leaf)
        self._roots = self._sums[self._first_root : 2 * self._first_root]

    @property
    def total(self) -> float:
        return float(self._roots.sum())

    def get(self, leaves: np.ndarray) -> np.ndarray:
        """Values [N] of leaves [N]."""
        return self._sums[leaves + self.first_leaf]

    def all(self) -> np.ndarray:
        """A copy of the values [leaves] of all leaves."""
        return self._sums[self.first_leaf : self.first_leaf + self.leaves].copy()

    def set(self, leaves: np.ndarray, values: np.ndarray) -> None:
        """Writes values [N] to leaves [N] (int64); the last of duplicates counts."""
        if len(leaves) == 0:
            return
        sums = self._sums
        nodes = leaves + self.first_leaf
        sums[nodes] = values
        while nodes[0] >= 2 * self._first_root:  # all leaves are on one level, so all nodes reach the roots together
            nodes >>= 1
            left = 2 * nodes
            sums[nodes] = sums[left] + sums[left + 1]

    def set_block(self, first: int, values: np.ndarray) -> None:
        """Writes values [L] to the leaves first … first + L - 1."""
        sums = self._sums
        start = first + self.first_leaf
        end = start + len(values)
        sums[start:end] = values
        while start >= 2 * self._first_root:
            start, end = start >> 1, (end + 1) >> 1
            np.add(sums[2 * start : 2 * end : 2], sums[2 * start + 1 : 2 * end : 2], out=sums[start:end])

    def find(self, targets: np.ndarray) -> np.ndarray:
        """For targets [N] in [0, total): the first leaf [N] (int64) at which the cumulative sum exceeds the target."""
        sums = self._sums
        running = np.cumsum(self._roots)
        # If rounding moved a target behind the end, use the last root that is not zero.
        root = np.minimum(np.searchsorted(running, targets, side="right"), np.searchsorted(running, running[-1]))
        targets = targets - np.where(root > 0, running[root - 1], 0.0)
        nodes = root + self._first_root
        while nodes.size and nodes[0] < self.first_leaf:
            nodes *= 2
            left = sums[nodes]
            # Never enter an empty right branch, even if rounding moved the target behind the node's sum.
            right = (targets >= left) & (sums[nodes + 1] > 0)
            targets -= left * right
            nodes += right
        return nodes - self.first_leaf
