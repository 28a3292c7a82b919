"""The ladder of epsilons over all environments of a run, and noise that is correlated in time."""

from __future__ import annotations

import numpy as np
import pytest

from learner.algorithms.exploration import epsilon_ladder
from learner.algorithms.noise import ColouredNoise


def test_the_ladder_of_ape_x_goes_from_0_4_to_0_4_to_the_eighth() -> None:
    ladder = epsilon_ladder(0, 8, 8, 0.4, 7.0)
    assert ladder.dtype == np.float32 and ladder.shape == (8,)
    assert ladder.tolist() == pytest.approx([0.4 ** (1 + i) for i in range(8)])
    assert (np.diff(ladder) < 0).all()


@pytest.mark.parametrize(
    ("place", "base", "power", "expected"),
    [
        ((0, 1, 1), 0.4, 7.0, [0.4**4.5]),  # a single environment gets the middle
        ((0, 4, 4), 0.0, 7.0, [0.0] * 4),
        ((0, 4, 4), 1.0, 7.0, [1.0] * 4),
        ((2, 4, 9), 0.25, 0.0, [0.25] * 4),
    ],
)
def test_a_ladder_may_have_one_rung_or_equal_ones(
    place: tuple[int, int, int], base: float, power: float, expected: list[float]
) -> None:
    assert epsilon_ladder(*place, base, power).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("actors", "each"), [(1, 6), (2, 3), (3, 2), (6, 1)])
def test_the_parts_of_all_actors_are_the_whole_ladder(actors: int, each: int) -> None:
    parts = [epsilon_ladder(actor * each, each, actors * each, 0.4, 7.0) for actor in range(actors)]
    assert np.array_equal(np.concatenate(parts), epsilon_ladder(0, 6, 6, 0.4, 7.0))


def drawn(exponent: float, steps: int, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    noise = ColouredNoise(np.random.default_rng(seed), exponent)
    return np.stack([noise.draw(shape) for _ in range(steps)])


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_the_power_of_noise_falls_with_the_frequency_as_it_should(exponent: float) -> None:
    noise = drawn(exponent, ColouredNoise.BLOCK, (100, 2))
    power = (np.abs(np.fft.rfft(noise, axis=0)) ** 2).mean((1, 2))
    slope, _ = np.polyfit(np.log(np.arange(2, 400)), np.log(power[2:400]), 1)
    assert slope == pytest.approx(-exponent, abs=0.05)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_noise_has_variance_1_and_each_sequence_is_its_own(exponent: float) -> None:
    noise = drawn(exponent, 2 * ColouredNoise.BLOCK, (300, 2))
    assert noise.dtype == np.float32 and noise.shape[1:] == (300, 2)
    assert noise.mean() == pytest.approx(0.0, abs=0.1) and noise.var() == pytest.approx(1.0, abs=0.1)
    assert noise.var((1, 2)).min() > 0.6, "at every step"
    across = np.corrcoef(noise[:, :, 0].T)[~np.eye(300, dtype=bool)]
    assert abs(across.mean()) < 0.02, "no two sequences go together"


def test_noise_begins_anew_with_another_number_of_environments() -> None:
    noise = ColouredNoise(np.random.default_rng(0), 1.0)
    noise.draw((4, 2))
    assert noise.draw((6, 2)).shape == (6, 2)
