"""PPO's update in numpy, against that in torch: the same rollouts, the same shuffles, the same weights afterwards."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from learner.algorithms.ppo.config import PpoConfig
from learner.engine.runtime import EngineRuntime
from learner.updates.base import Chunks
from tests.learner.engine.arrays import in_arrays
from tests.learner.examples import LEARNER, algorithm_of, figures, image, make_spec, make_update, vector, weights_of
from tests.learner.rollouts import rolled
from transport.experience import ACTION_MASK, Categorical, Continuous, ExperienceSpec, MultiCategorical, observed

SETTINGS = msgspec.structs.replace(LEARNER, learning_rate=3e-3, adam_epsilon=1e-5, max_grad_norm=0.5)
PLAIN = PpoConfig(n_epochs=3, minibatches=3, hidden=16)
REALS = Continuous((-1.0, -2.0), (1.0, 2.0))
GOAL = (vector("observation", 5), vector("achieved_goal", 3), vector("desired_goal", 3))
MASKED = (vector(), observed(ACTION_MASK, (3,), "|u1"))


def spec_of(*fields: Any, action: Any = None, stack: int = 1) -> ExperienceSpec:
    return msgspec.structs.replace(make_spec(*fields, stack=stack), action=action or Categorical(3))


def changed(**options: Any) -> PpoConfig:
    return msgspec.structs.replace(PLAIN, **options)


CASES: dict[str, tuple[ExperienceSpec, PpoConfig]] = {
    "discrete": (spec_of(vector()), PLAIN),
    "entropy": (spec_of(vector()), changed(ent_coef=0.05, vf_coef=1.5)),
    "continuous": (spec_of(vector(), action=REALS), changed(ent_coef=0.01)),
    "narrow": (spec_of(vector(), action=REALS), changed(log_std_init=-2.45, log_std_min=-2.5, clip_range=0.02)),
    "masked": (spec_of(*MASKED, action=Categorical(3, masked=True)), changed(ent_coef=0.05)),
    "choices": (spec_of(vector(), action=MultiCategorical((3, 2, 4))), changed(ent_coef=0.05)),
    "equal choices": (spec_of(vector(), action=MultiCategorical((3, 3))), changed(ent_coef=0.05)),
    "value clipping": (spec_of(vector()), changed(clip_range_vf=0.05)),
    "rewards normalised": (spec_of(vector()), changed(normalize_reward=True, clip_range_vf=0.1)),
    "adaptive": (spec_of(vector(), action=REALS), changed(normalize_reward=True, adaptive_kl=0.001)),
    "target kl": (spec_of(vector()), changed(target_kl=1e-4, n_epochs=8)),
    "annealed": (spec_of(vector()), changed(anneal_steps=400, learning_rate_end=0.1, ent_coef=0.05, ent_coef_end=0.5)),
    "no normalisation": (spec_of(vector()), changed(normalize_observation=False, normalize_advantage=False)),
    "goals": (spec_of(*GOAL, action=REALS), PLAIN),
    "stacked": (spec_of(*GOAL, stack=3), PLAIN),
    "stacked bytes": (spec_of(observed("grid", (3, 4), "|u1", 0.1, -1.0), vector(), stack=2), changed(network="mlp")),
    "image as a vector": (spec_of(image(shape=(4, 5))), changed(network="mlp", layers=3)),
    "clipped rewards": (spec_of(vector()), changed(clip_rewards=True, reward_scale=0.3, gae_lambda=0.5)),
    "linear": (spec_of(vector()), changed(network="linear")),
    "shared": (spec_of(vector()), changed(shared=True, ent_coef=0.05, normalize_reward=True)),
    "shared, continuous": (spec_of(*GOAL, action=REALS), changed(shared=True, layers=1)),
    "shared, no hidden layer": (spec_of(vector()), changed(shared=True, network="linear")),
    "shared, image as a vector": (spec_of(image(shape=(4, 5))), changed(shared=True, network="mlp", n_epochs=2)),
    "layer norm": (spec_of(vector()), changed(network_options={"layer_norm": True, "activation": "relu"})),
}


class Shuffles:
    """The permutations that torch draws."""

    def permutation(self, items: int) -> np.ndarray:
        return torch.randperm(items).numpy()


def pair(spec: ExperienceSpec, config: PpoConfig, lag: int = 1) -> tuple[Any, Any]:
    """The update by torch, and the one in numpy with the same weights; each wants the experience of its algorithm."""
    torch.manual_seed(0)
    algorithm = algorithm_of(config)
    spec = msgspec.structs.replace(spec, unit="rollouts", extras=algorithm.needs(spec).columns)
    theirs = make_update(spec, config, SETTINGS, max_policy_lag=lag)
    runtime = EngineRuntime(SETTINGS, max_policy_lag=lag)
    mine: Any = algorithm.array_update(spec, runtime)
    for name, module in theirs.modules.items():
        mine.modules[name].load(weights_of(module))
    runtime.random = Shuffles()  # type: ignore[assignment]
    return theirs, mine


def learn(theirs: Any, mine: Any, batch: Chunks, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    torch.manual_seed(seed)
    expected = {name: float(value) for name, value in theirs.update(batch).metrics.items()}
    torch.manual_seed(seed)
    return expected, dict(mine.update(in_arrays(batch)).metrics)


def agree(theirs: Any, mine: Any, before: dict[str, dict[str, np.ndarray]]) -> None:
    """Weights differ by little of their movement; running statistics by little."""
    for name, module in theirs.modules.items():
        state = weights_of(module)
        assert list(mine.modules[name].state_dict()) == list(state)
        moved = max(float(np.abs(value - before[name][key]).max()) for key, value in state.items())
        for key, value in state.items():
            found = mine.modules[name].state_dict()[key]
            np.testing.assert_allclose(found, value, rtol=2e-5, atol=1e-5 + 2e-4 * moved, err_msg=f"{name} {key}")
    assert mine.counters.keys() == theirs.counters.keys()
    assert mine.counters == pytest.approx(theirs.counters)


@pytest.mark.parametrize("lag", [1, 4])
@pytest.mark.parametrize("case", CASES)
def test_it_learns_what_torch_learns(case: str, lag: int) -> None:
    theirs, mine = pair(*CASES[case], lag)
    before = {name: weights_of(module) for name, module in theirs.modules.items()}
    for seed in range(3):
        batch, _, _ = rolled(theirs)
        expected, found = learn(theirs, mine, batch, seed)
        assert found.keys() == expected.keys()
        assert found == pytest.approx(expected, rel=2e-3, abs=2e-5)
    agree(theirs, mine, before)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_steps_that_are_not_finite_are_skipped_as_by_torch(wrong: float) -> None:
    theirs, mine = pair(*CASES["continuous"])
    before = {name: weights_of(module) for name, module in theirs.modules.items()}
    batch, _, _ = rolled(theirs)
    learn(theirs, mine, batch, 0)
    batch.reward[1, 3] = wrong
    learn(theirs, mine, batch, 1)
    assert mine.runtime.figures()["skipped_updates"] == figures(theirs)["skipped_updates"] > 0
    assert mine.runtime.figures()["skipped_in_a_row"] == figures(theirs)["skipped_in_a_row"]
    agree(theirs, mine, before)
