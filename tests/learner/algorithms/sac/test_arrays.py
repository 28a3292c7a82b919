"""SAC's update in arrays beside torch's: the same weights, metrics and priorities from the same batches and noise."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from learner.algorithms.sac.config import SacConfig
from learner.config import LearnerConfig
from learner.engine.runtime import EngineRuntime
from learner.updates.base import Transitions
from tests.learner.acting import algorithm_of
from tests.learner.algorithms.sac.test_update import make_batch, make_spec
from tests.learner.engine.arrays import in_arrays
from tests.learner.examples import figures, make_update
from transport.experience import ExperienceSpec

STEPS = 50
LEARNER = LearnerConfig(batch_size=32, learning_rate=1e-3, adam_epsilon=1e-8)


class Drawn:
    """Random numbers that both sides get: numpy draws, torch is given the same."""

    def __init__(self, seed: int) -> None:
        self._random, self._given = np.random.default_rng(seed), list[np.ndarray]()

    def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        self._given.append(self._random.standard_normal(shape, dtype))
        return self._given[-1]

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> np.ndarray:
        self._given.append(self._random.integers(low, high, shape))
        return self._given[-1]

    def randn_like(self, like: torch.Tensor) -> torch.Tensor:
        found = torch.from_numpy(self._given.pop(0))
        assert found.shape == like.shape
        return found

    def randint(self, low: int, high: int, shape: tuple[int, ...], device: object) -> torch.Tensor:
        return torch.from_numpy(self._given.pop(0))


class Pair:
    """The same update by torch and by the engine, which begin with the same weights."""

    def __init__(self, spec: ExperienceSpec, config: SacConfig, learner: LearnerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.torch = make_update(spec, config, learner)
        self.torch.by_hand, self.torch.optimiser._measured = None, True  # a measurement of memory would draw, too
        self.runtime = EngineRuntime(learner)
        self.arrays: Any = algorithm_of(config).array_update(spec, self.runtime)
        self.load(*(2 * [state(self.torch.modules)]))
        drawn = Drawn(1)
        monkeypatch.setattr(self.arrays, "random", drawn)
        monkeypatch.setattr(torch, "randn_like", drawn.randn_like)
        monkeypatch.setattr(torch, "randint", drawn.randint)

    def load(self, by_arrays: dict[str, np.ndarray], by_torch: dict[str, np.ndarray]) -> None:
        """Gives both weights of all modules, by MODULE/NAME."""
        for name in self.torch.modules:
            prefix = f"{name}/"
            self.arrays.modules[name].load(
                {key.removeprefix(prefix): each for key, each in by_arrays.items() if key.startswith(prefix)}
            )
            self.torch.modules[name].load_state_dict(
                {
                    key.removeprefix(prefix): torch.from_numpy(each.copy())
                    for key, each in by_torch.items()
                    if key.startswith(prefix)
                }
            )

    def spoil(self, odd: float) -> None:
        """One weight of the target network."""
        weights = state(self.torch.modules)
        weights["target/weights.1"][0, 0, 0] = odd
        self.load(weights, weights)

    def update(self, batch: Transitions) -> None:
        found, expected = self.arrays.update(in_arrays(batch)), self.torch.update(batch)
        assert found.metrics.keys() == expected.metrics.keys()
        for name, value in expected.metrics.items():
            np.testing.assert_allclose(found.metrics[name], value.numpy(), rtol=2e-3, atol=1e-4, err_msg=name)
        np.testing.assert_allclose(found.priorities, expected.priorities.numpy(), rtol=2e-3, atol=1e-3)

    def weights(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Of all modules: by arrays, by torch."""
        by_arrays, by_torch = (state(update.modules) for update in (self.arrays, self.torch))
        assert list(by_arrays) == list(by_torch)
        return by_arrays, by_torch


def state(modules: dict[str, Any]) -> dict[str, np.ndarray]:
    return {
        f"{name}/{key}": value.numpy().copy() if isinstance(value, torch.Tensor) else value.copy()
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }


def movement(pair: Pair, batches: list[Transitions]) -> float:
    """The greatest difference between both, by the length of each tensor's movement."""
    _, before = pair.weights()
    for batch in batches:
        pair.update(batch)
    found, expected = pair.weights()
    apart = {name: float(np.linalg.norm(found[name] - value)) for name, value in expected.items()}
    moved = {name: float(np.linalg.norm(value - before[name])) for name, value in expected.items()}
    return max(each / (moved[name] or 1.0) for name, each in apart.items())


OPTIONS: list[dict[str, Any]] = [
    {"layers": 1},
    {"layers": 3, "clip_targets": True, "temperature_rate": 0.0},
    {"normalize_observation": True, "normalize_reward": True, "reward_scale": 2.0},
    {"layer_norm": True},
    {"layer_norm": True, "weight_norm": True, "policy_delay": 3},
    {"network": "linear", "policy_delay": 2},
    {"critic": "categorical"},
    {"critic": "categorical", "layer_norm": True, "weight_norm": True, "policy_delay": 2, "normalize_observation": True},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("stack", "hindsight"), [(1, 2), (2, 0)])
def test_the_weights_are_torchs_after_fifty_updates(
    options: dict[str, Any], stack: int, hindsight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(stack)
    spec = make_spec(stack, hindsight)
    pair = Pair(spec, SacConfig(hidden=16, gamma=0.9, **options), LEARNER, monkeypatch)
    assert movement(pair, [make_batch(spec) for _ in range(STEPS)]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_the_weights_are_torchs_for_random_networks_and_options(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    spec = make_spec(int(random.integers(1, 3)), int(random.integers(0, 3)))
    options = OPTIONS[seed % len(OPTIONS)] | {"hidden": int(random.integers(1, 65)), "gamma": float(random.uniform(0, 0.999))}
    rate = float(10 ** random.uniform(-4, -2.5))
    learner = msgspec.structs.replace(LEARNER, learning_rate=rate, max_grad_norm=float(10 ** random.uniform(-1, 2)))
    pair = Pair(spec, SacConfig(**options), learner, monkeypatch)
    items = int(random.integers(1, 65))
    # Products add in another order than torch's: three in four of these networks are within 1e-5.
    assert movement(pair, [make_batch(spec, items) for _ in range(STEPS)]) < 1e-4


@pytest.mark.parametrize("options", [{}, {"critic": "categorical"}, {"normalize_observation": True, "normalize_reward": True}])
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf, 1e30])
@pytest.mark.parametrize("where", ["reward", "action", "observation", "weight"])
def test_what_is_not_finite_is_left_out_or_skipped_as_by_torch(
    options: dict[str, Any], odd: float, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    spec = make_spec()
    pair = Pair(spec, SacConfig(hidden=16, **options), LEARNER, monkeypatch)
    for number in range(6):
        batch = make_batch(spec)
        if number == 3 and where == "weight":
            pair.spoil(odd)
        elif number in (0, 3) and where != "weight":
            (batch.observation["observation"] if where == "observation" else getattr(batch, where))[5] = odd
        pair.update(batch)
    found, expected = pair.runtime.figures(), figures(pair.torch)
    assert found == pytest.approx(expected)
    for name, value in pair.weights()[1].items():
        np.testing.assert_allclose(pair.weights()[0][name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_the_state_is_torchs_and_a_run_goes_from_one_to_the_other_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    spec = make_spec()
    pair = Pair(spec, SacConfig(hidden=16, policy_delay=2, normalize_reward=True), LEARNER, monkeypatch)
    runtime = pair.torch.optimiser.process
    assert list(pair.runtime.state()) == list(runtime.state()) == ["main/skipped"]
    for number in range(5):
        pair.update(make_batch(spec))
        found, expected = pair.runtime.state(), in_arrays(runtime.state())
        assert {name: (value.shape, value.dtype) for name, value in found.items()} == {
            name: (value.shape, value.dtype) for name, value in expected.items()
        }
        by_arrays, by_torch = ({name: value.copy() for name, value in each.items()} for each in (found, expected))
        pair.runtime.load_state(by_torch)
        runtime.load_state({name: torch.from_numpy(value) for name, value in by_arrays.items()})
        if number == 2:  # weights, too
            weights = pair.weights()
            pair.load(*weights[::-1])
    assert max(np.abs(found - expected).max() for found, expected in zip(*map(dict.values, pair.weights()), strict=True)) < 1e-5


@pytest.mark.parametrize("options", [{"network": "tests.learner.networks.own:Torso"}])
def test_what_the_engine_does_not_know_is_left_to_torch(options: dict[str, Any]) -> None:
    update = algorithm_of(SacConfig(**options)).array_update(make_spec(), EngineRuntime(LEARNER))
    assert update is None
