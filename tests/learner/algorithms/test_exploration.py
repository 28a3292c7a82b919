"""The ladder of exploration over all environments of a run."""

from __future__ import annotations

import numpy as np
import pytest

from learner.algorithms.exploration import epsilon_ladder


def test_the_ladder_of_ape_x_goes_from_0_4_to_0_4_to_the_eighth() -> None:
    ladder = epsilon_ladder(0, 8, 8, 0.4, 7.0)
    assert ladder.dtype == np.float32 and ladder.shape == (8,)
    assert ladder.tolist() == pytest.approx([0.4 ** (1 + i) for i in range(8)])
    assert (np.diff(ladder) < 0).all()


@pytest.mark.parametrize(("actors", "each"), [(1, 6), (2, 3), (3, 2), (6, 1)])
def test_the_parts_of_all_actors_are_the_whole_ladder(actors: int, each: int) -> None:
    parts = [epsilon_ladder(actor * each, each, actors * each, 0.4, 7.0) for actor in range(actors)]
    assert np.array_equal(np.concatenate(parts), epsilon_ladder(0, 6, 6, 0.4, 7.0))


def test_a_single_environment_gets_the_middle_of_the_ladder() -> None:
    assert epsilon_ladder(0, 1, 1, 0.4, 7.0).tolist() == pytest.approx([0.4**4.5])


def test_a_base_of_zero_never_explores_and_a_base_of_one_always_does() -> None:
    assert not epsilon_ladder(0, 4, 4, 0.0, 7.0).any()
    assert (epsilon_ladder(0, 4, 4, 1.0, 7.0) == 1.0).all()


def test_a_power_of_zero_gives_all_the_same() -> None:
    assert epsilon_ladder(2, 4, 9, 0.25, 0.0).tolist() == [0.25] * 4
