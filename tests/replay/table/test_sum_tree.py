"""The sum-tree against cumsum and searchsorted."""

from __future__ import annotations

import numpy as np
import pytest

from replay.table.sum_tree import SumTree


@pytest.mark.parametrize("roots", [1, 16, 4096])
@pytest.mark.parametrize("leaves", [1, 2, 3, 8, 100, 1000])
def test_it_agrees_with_a_cumulative_sum_after_random_writes(leaves: int, roots: int) -> None:
    generator = np.random.default_rng(leaves)
    tree, oracle = SumTree(leaves, roots), np.zeros(leaves)
    for _ in range(50):
        count = int(generator.integers(1, 2 * leaves + 1))
        at = generator.integers(0, leaves, count)
        values = generator.random(count) * (generator.random(count) > 0.3)
        tree.set(at, values)
        for leaf, value in zip(at, values, strict=True):  # of duplicates the last wins
            oracle[leaf] = value
        assert tree.total == pytest.approx(oracle.sum(), abs=1e-9)
        assert (tree.get(np.arange(leaves)) == oracle).all()
        if oracle.sum() > 0:
            targets = generator.random(200) * oracle.sum() * (1 - 1e-12)
            expected = np.searchsorted(np.cumsum(oracle), targets, side="right")
            assert (tree.find(targets) == expected).all()


@pytest.mark.parametrize("roots", [1, 4, 16, 64])
def test_a_block_write_is_the_same_as_single_writes(roots: int) -> None:
    generator = np.random.default_rng(0)
    blocks, singles = SumTree(64, roots), SumTree(64, roots)
    for _ in range(30):
        first, values = 8 * int(generator.integers(8)), generator.random(8)
        blocks.set_block(first, values)
        singles.set(np.arange(first, first + 8), values)
        targets = generator.random(50) * blocks.total
        assert blocks.total == pytest.approx(singles.total)
        assert (blocks.find(targets) == singles.find(targets)).all()


@pytest.mark.parametrize("roots", [1, 2, 8])
def test_a_leaf_of_zero_is_never_found_even_at_the_edges(roots: int) -> None:
    tree = SumTree(8, roots)
    tree.set(np.array([2, 5]), np.array([0.1, 0.2]))
    edges = np.array([0.0, 0.1, np.nextafter(0.1, 0), tree.total, np.nextafter(tree.total, 0), 2 * tree.total])
    assert set(tree.find(edges)) <= {2, 5}


def test_writing_nothing_changes_nothing() -> None:
    tree = SumTree(4)
    tree.set(np.array([], np.int64), np.array([]))
    assert tree.total == 0.0
