"""The ladder of epsilons over all environments of a run, and noise that is correlated in time."""

from __future__ import annotations

import numpy as np
import pytest

from learner.algorithms.exploration import epsilon_ladder
from learner.algorithms.noise import COMPARED_EPISODES, PATIENCE, ColouredNoise, ColouredWhileUseful, exponent_ladder


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


def test_the_ladder_of_exponents_ends_at_the_highest_and_actors_share_it() -> None:
    whole = exponent_ladder(0, 9, 9, 1.5)
    assert whole[0] == 0.0 and whole[-1] == 1.5 and (np.diff(whole) > 0).all() and whole[4] == 1.5 / 4
    assert exponent_ladder(0, 1, 1, 1.5).tolist() == [1.5 / 4]


@pytest.mark.parametrize(("actors", "each"), [(1, 12), (2, 6), (3, 4), (6, 2)])
def test_each_actor_has_low_and_high_exponents_of_the_ladder(actors: int, each: int) -> None:
    parts = [exponent_ladder(actor * each, each, actors * each, 2.0) for actor in range(actors)]
    assert sorted(np.concatenate(parts)) == exponent_ladder(0, 12, 12, 2.0).tolist()
    assert all(part[-1] - part[0] > 0.5 for part in parts)


def some_episodes(noise: ColouredWhileUseful, slope: float, tests: int, seed: int = 0) -> None:
    """Enough episodes of 8 environments for so many tests: normal returns, whose mean rises by `slope` over the environments."""
    random = np.random.default_rng(seed)
    for _ in range(tests * COMPARED_EPISODES // 8):
        noise.ended(np.arange(8), random.normal(size=8) + slope * np.arange(8) / 7)


def correlation(noise: ColouredWhileUseful) -> float:
    """Of the noise of the last of 8 environments with that of 10 steps later."""
    steps = np.stack([noise.draw((8, 20)) for _ in range(500)])[:, -1]
    return float((steps[:-10] * steps[10:]).mean())


def spread_noise() -> ColouredWhileUseful:
    noise = ColouredWhileUseful()
    noise.spread(np.random.default_rng(0), exponent_ladder(0, 8, 8, 2.0))
    return noise


def test_noise_becomes_white_where_environments_with_slow_noise_have_lower_returns() -> None:
    noise = spread_noise()
    assert correlation(noise) > 0.5
    some_episodes(noise, -4.0, 3)
    assert noise.over and abs(correlation(noise)) < 0.05
    some_episodes(noise, 4.0, 9)
    noise.spread(np.random.default_rng(0), exponent_ladder(0, 8, 16, 2.0))
    assert noise.over and abs(correlation(noise)) < 0.05, "for good, also in another place"


def test_noise_stays_coloured_where_environments_with_slow_noise_have_higher_or_equal_returns() -> None:
    noise = spread_noise()
    some_episodes(noise, 4.0, 20)
    assert not noise.over
    for _ in range(100):
        noise.ended(np.arange(8), np.full(8, -200.0))
    assert not noise.over and correlation(noise) > 0.5
    some_episodes(noise, -4.0, 4)
    assert noise.over, "early benefit does not hide later harm"


def test_noise_becomes_white_where_slow_noise_has_had_no_benefit_for_long() -> None:
    noise = spread_noise()
    some_episodes(noise, 0.3, PATIENCE // 2)
    some_episodes(noise, 8.0, 2)
    some_episodes(noise, 0.3, PATIENCE - 1)
    assert not noise.over, "counted anew after benefit"
    some_episodes(noise, 0.3, 1)
    assert noise.over


def test_chance_seldom_makes_noise_white() -> None:
    kept = []
    for seed in range(100):
        noise = spread_noise()
        some_episodes(noise, 0.0, 3, seed)
        kept.append(not noise.over)
    assert np.mean(kept) > 0.85


def test_each_environment_has_noise_of_its_own_exponent() -> None:
    noise = ColouredNoise(np.random.default_rng(0), np.array([0.0, 1.0]))
    steps = np.stack([noise.draw((2, 50)) for _ in range(2_000)])  # [T, K, A]
    white, pink = (steps[:-10] * steps[10:]).mean((0, 2))
    assert white == pytest.approx(0.0, abs=0.02) and pink > 0.3
    np.testing.assert_allclose(steps.var((0, 2)), 1.0, atol=0.15)


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
