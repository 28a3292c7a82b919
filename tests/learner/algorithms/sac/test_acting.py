"""How a soft actor acts: its noise, mode by mode."""

from __future__ import annotations

import numpy as np
import pytest

from learner.algorithms.sac.acting import GaussianActing
from tests.learner.examples import vector
from transport.experience import Columns, Continuous, ExperienceSpec

MEAN, LOG_STD = 0.5, -1.0
SPEC = ExperienceSpec((vector(),), Continuous((-1.0,), (1.0,)), 16)


class Still:
    """An inference that always answers the same."""

    state: dict[str, tuple[int, ...]] = {}  # noqa: RUF012

    def __call__(self, observation: Columns, state: Columns) -> tuple[np.ndarray, Columns]:
        return np.tile(np.array([[MEAN, LOG_STD]], np.float32), (len(observation["observation"]), 1)), {}


def act(mode: str, exponent: float, steps: int = 1_000, seed: int = 1) -> np.ndarray:
    acting = GaussianActing(SPEC, Still(), exponent)  # type: ignore[arg-type]
    acting.assign(seed, 0, 50, 50)
    observation = {"observation": np.zeros((50, 1, 4), np.float32)}
    return np.stack([acting.act(observation, {}, mode).action[:, 0] for _ in range(steps)])  # type: ignore[arg-type]


def correlation(actions: np.ndarray, lag: int = 10) -> float:
    centred = actions - MEAN
    return float((centred[:-lag] * centred[lag:]).mean() / centred.var())


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_exploration_has_the_policys_mean_and_deviation_and_the_colour_of_its_noise(exponent: float) -> None:
    actions = act("explore", exponent)
    assert actions.dtype == np.float32
    assert actions.mean() == pytest.approx(MEAN, abs=0.1) and actions.std() == pytest.approx(np.exp(LOG_STD), rel=0.05)
    assert (correlation(actions) > 0.3) == (exponent == 1.0)


def test_evaluation_draws_independent_noise_or_none() -> None:
    assert (act("greedy", 1.0) == MEAN).all()
    actions = act("stochastic", 1.0)
    assert actions.std() == pytest.approx(np.exp(LOG_STD), rel=0.05) and abs(correlation(actions)) < 0.05


def test_random_actions_fill_the_bounds_and_have_the_colour_too() -> None:
    actions = np.tanh(act("random", 1.0))
    assert np.histogram(actions, 4, (-1, 1))[0].min() > 0.15 * actions.size
    assert float((actions[:-10] * actions[10:]).mean() / actions.var()) > 0.3
    counts, _ = np.histogram(np.tanh(act("random", 0.0, 400)), 10, (-1, 1))
    assert ((counts - 2_000) ** 2 / 2_000).sum() < 33.7, "uniform: chi-square, 9 degrees, p = 1e-4"


def test_a_seed_gives_the_same_actions() -> None:
    assert np.array_equal(act("explore", 1.0, 20), act("explore", 1.0, 20))
    assert not np.array_equal(act("explore", 1.0, 20), act("explore", 1.0, 20, seed=2))


def test_what_is_acted_on_is_not_changed_by_the_next_step() -> None:
    """A chunk keeps actions of many steps."""
    acting = GaussianActing(SPEC, Still(), 1.0)  # type: ignore[arg-type]
    observation = {"observation": np.zeros((3, 1, 4), np.float32)}
    first = acting.act(observation, {}, "random").action
    before = first.copy()
    for _ in range(2_000):
        acting.act(observation, {}, "random").action[:] = 7.0
    assert np.array_equal(first, before)
