"""The built-in selectors: which items are drawn, and how often."""

from __future__ import annotations

import numpy as np
import pytest

from replay.config import ReplayConfig
from replay.table.selectors import Prioritised, PrioritisedConfig, make_selector


def unknown(count: int) -> np.ndarray:
    return np.full(count, np.nan)


def test_items_are_drawn_in_proportion_to_priority_to_the_exponent() -> None:
    selector = Prioritised(8, np.random.default_rng(0), PrioritisedConfig(0.5))
    selector.insert(0, np.array([True] * 6 + [False] * 2), unknown(8))
    priorities = np.array([1.0, 4.0, 9.0, 16.0, 25.0, 0.0])
    selector.update(np.arange(6), priorities)
    expected = np.sqrt(np.maximum(priorities, 1e-6))
    expected /= expected.sum()
    counts = np.zeros(8)
    for _ in range(200):
        leaves, probability = selector.sample(100)
        assert probability == pytest.approx(expected[leaves])
        counts += np.bincount(leaves, minlength=8)
    # Stratified draws vary less than a multinomial's, whose deviation here is below 0.0036.
    assert np.abs(counts[:6] / counts.sum() - expected).max() < 0.01
    assert counts[6:].sum() == 0


def test_a_new_item_without_a_priority_gets_the_highest_so_far() -> None:
    selector = Prioritised(8, np.random.default_rng(0), PrioritisedConfig(1.0))
    selector.insert(0, np.ones(4, bool), unknown(4))
    selector.update(np.arange(4), np.array([3.0, 1.0, 1.0, 1.0]))
    selector.insert(4, np.ones(4, bool), unknown(4))
    _, probability = selector.sample(1000)
    assert probability.max() == pytest.approx(3 / (3 + 3 + 4 * 3))


def test_a_new_item_keeps_its_own_priority_and_raises_the_highest() -> None:
    selector = Prioritised(8, np.random.default_rng(0), PrioritisedConfig(0.5))
    selector.insert(0, np.array([True, True, True, False]), np.array([16.0, 0.0, np.nan, 900.0]))
    assert selector.state().values[:4].tolist() == [4.0, 1e-3, 4.0, 0.0]  # 900 stands where nothing can be drawn
    selector.insert(4, np.ones(4, bool), np.array([np.nan, 9.0, 25.0, 1.0]))
    assert selector.state().values[4:].tolist() == [5.0, 3.0, 5.0, 1.0]


def test_uniform_ignores_priorities() -> None:
    selector = make_selector(ReplayConfig(selector="uniform", priority_exponent=0.9), 8, np.random.default_rng(0))
    selector.insert(0, np.ones(8, bool), np.arange(8) * 1.0)
    selector.update(np.arange(8), np.arange(8) * 100.0)
    leaves, probability = selector.sample(800)
    assert probability == pytest.approx(1 / 8)
    assert np.bincount(leaves).tolist() == [100] * 8  # equal strata
