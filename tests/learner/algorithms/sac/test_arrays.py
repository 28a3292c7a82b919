"""SAC's update in arrays beside torch's, option by option; random ones are in tests/learner/engine/test_equality.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from learner.algorithms.sac.algorithm import Sac
from learner.algorithms.sac.config import SacConfig
from learner.config import LearnerConfig
from learner.engine.runtime import EngineRuntime
from learner.networks.base import PolicyModule
from tests.learner.acting import algorithm_of
from tests.learner.algorithms.sac.test_update import make_batch, make_spec
from tests.learner.engine.arrays import in_arrays
from tests.learner.engine.pairs import Pair
from transport.experience import ExperienceSpec

LEARNER = LearnerConfig(batch_size=32, learning_rate=1e-3, adam_epsilon=1e-5)
OPTIONS: list[dict[str, Any]] = [
    {"layers": 1},
    {"layers": 3, "clip_targets": True, "temperature_rate": 0.0},
    {"normalize_observation": True, "normalize_reward": True, "reward_scale": 2.0},
    {"layer_norm": True},
    {"network": "linear"},
    {"imitation": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("stack", "hindsight"), [(1, 2), (2, 0)])
def test_the_weights_are_torchs_after_fifty_updates(
    options: dict[str, Any], stack: int, hindsight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(stack)
    spec = make_spec(stack, hindsight)
    pair = Pair(spec, SacConfig(hidden=16, gamma=0.9, **options), LEARNER, monkeypatch)
    before, _ = pair.weights()
    for _ in range(50):
        pair.update(make_batch(spec))
    assert pair.apart(before) < 1e-5


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize("where", ["reward", "action", "observation", "weight"])
def test_what_is_not_finite_is_left_out_or_skipped_as_by_torch(odd: float, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    spec = make_spec()
    pair = Pair(spec, SacConfig(hidden=16), LEARNER, monkeypatch)
    before, _ = pair.weights()
    for number in range(6):
        batch = make_batch(spec)
        if number == 3 and where == "weight":
            pair.torch.target.weights[1][0, 0, 0] = odd
            pair.load_from_torch()
        elif number in (0, 3) and where != "weight":
            (batch.observation["observation"] if where == "observation" else getattr(batch, where))[5] = odd
        pair.update(batch)
    for name, value in pair.weights()[0].items():
        np.testing.assert_allclose(pair.weights()[1][name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_the_state_is_torchs_and_a_run_goes_from_one_to_the_other_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    spec = make_spec()
    pair = Pair(spec, SacConfig(hidden=16, normalize_reward=True), LEARNER, monkeypatch)
    runtime = pair.torch.optimiser.process
    assert list(pair.runtime.state()) == list(runtime.state()) == ["main/skipped"]
    for _ in range(5):
        pair.update(make_batch(spec))
        found, expected = (
            in_arrays({name: torch.from_numpy(value) for name, value in pair.runtime.state().items()}),
            runtime.state(),
        )
        assert {name: (value.shape, value.dtype) for name, value in found.items()} == {
            name: (value.shape, value.numpy().dtype) for name, value in expected.items()
        }
        pair.runtime.load_state(in_arrays(expected))
        runtime.load_state({name: torch.from_numpy(value) for name, value in found.items()})
        pair.load_from_torch()
    assert len([name for name in found if name.endswith("step")]) == 13


def test_a_subclass_with_a_policy_of_its_own_is_left_to_torch() -> None:
    class OwnPolicy(Sac):
        def policy(self, spec: ExperienceSpec) -> PolicyModule:
            return super().policy(spec)

    assert Sac(SacConfig()).array_update(make_spec(), EngineRuntime(LEARNER)) is not None
    assert OwnPolicy(SacConfig()).array_update(make_spec(), EngineRuntime(LEARNER)) is None


def test_what_the_engine_does_not_know_is_left_to_torch() -> None:
    algorithm = algorithm_of(SacConfig(network="tests.learner.networks.own:Torso"))
    assert algorithm.array_update(make_spec(), EngineRuntime(LEARNER)) is None
