"""Adam over one vector, against the optimiser in torch."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from learner.engine.adam import FlatAdam
from learner.engine.module import Module
from learner.updates.base import Loss
from learner.updates.optimiser import AdamOptimiser
from learner.updates.runtime import LearnerRuntime
from learner.weights.errors import CheckpointError
from tests.learner.examples import CPU, LEARNER

CONFIG = msgspec.structs.replace(LEARNER, max_grad_norm=0.5, adam_epsilon=1e-5, learning_rate=1e-2)


class Process:
    """Counts what was stepped."""

    def __init__(self) -> None:
        self.config, self.items = CONFIG, 0

    def stepped(self, optimiser: FlatAdam, items: int) -> None:
        self.items += items


def pair() -> tuple[nn.Linear, nn.Linear, AdamOptimiser, FlatAdam]:
    torch.manual_seed(0)
    first, second = nn.Linear(3, 5), nn.Linear(5, 2)
    runtime = LearnerRuntime(CONFIG, CPU)
    modules = {
        each: Module({name: value.numpy() for name, value in each.state_dict().items()}, ("weight", "bias"))
        for each in (first, second)
    }
    flat = FlatAdam(Process(), list(modules.values()), CONFIG.learning_rate, {modules[first]: 1e-3})
    return first, second, runtime.optimiser("main", first, second, rates={first: 1e-3}), flat


def take(optimiser: AdamOptimiser, flat: FlatAdam, slopes: list[np.ndarray]) -> None:
    def loss(_: torch.Tensor) -> Loss:
        value = sum(
            (parameter * torch.from_numpy(slope)).sum() for parameter, slope in zip(optimiser.parameters, slopes, strict=True)
        )
        return Loss(value, {})  # type: ignore[arg-type]

    norm = optimiser.step(loss, torch.zeros(4)).metrics["gradient_norm"]
    own = [gradient for module in flat.modules for gradient in module.gradients.values()]
    for gradient, slope in zip(own, slopes, strict=True):
        gradient[...] = slope
    np.testing.assert_allclose(flat.step(4), float(norm), rtol=1e-5)


def agree(optimiser: AdamOptimiser, flat: FlatAdam) -> None:
    for mine, its in zip(flat.parameters, optimiser.parameters, strict=True):
        np.testing.assert_allclose(mine, its.detach(), rtol=1e-5, atol=1e-7)
    mine, its = flat.state(), optimiser.state()
    assert mine.keys() == its.keys()
    for name, value in its.items():
        np.testing.assert_allclose(mine[name], value, rtol=1e-4, atol=1e-9, err_msg=name)


def draw(random: np.random.Generator, flat: FlatAdam, scale: float = 1.0) -> list[np.ndarray]:
    return [scale * random.standard_normal(parameter.shape, np.float32) for parameter in flat.parameters]


def test_steps_are_those_of_torch_also_clipped_skipped_and_at_another_rate() -> None:
    random = np.random.default_rng(1)
    _, _, optimiser, flat = pair()
    agree(optimiser, flat)  # no moments before the first step
    for number in range(30):
        optimiser.scale_learning_rate(0.5 + number / 30)
        flat.scale_learning_rate(0.5 + number / 30)
        assert flat.learning_rate == pytest.approx(optimiser.learning_rate)
        slopes = draw(random, flat, 0.01 if number % 3 else 10.0)
        if number in (7, 8):
            slopes[1].flat[0] = np.nan if number == 7 else np.inf
        take(optimiser, flat, slopes)
        assert flat.skipped_in_a_row == float(optimiser.skipped_in_a_row)
    assert flat.skipped == 2
    agree(optimiser, flat)


def test_the_state_goes_to_torch_and_back() -> None:
    random = np.random.default_rng(2)
    _, _, optimiser, flat = pair()
    for _ in range(3):
        slopes = draw(random, flat)
        take(optimiser, flat, slopes)
        optimiser.load_state({name: torch.from_numpy(np.array(value)) for name, value in flat.state().items()})
        flat.load_state({name: value.numpy() for name, value in optimiser.state().items()})
    agree(optimiser, flat)


def test_the_state_of_another_network_is_refused() -> None:
    _, _, _, flat = pair()
    for wrong in ({"adam/0/exp_avg": np.zeros(3, np.float32)}, {"adam/9/exp_avg": np.zeros((5, 3), np.float32)}):
        with pytest.raises(ValueError, match="another network"):
            flat.load_state(wrong | {"skipped": np.zeros((), np.float32)})


def test_weights_of_another_network_change_nothing() -> None:
    module = Module({"a": np.ones(2, np.float32), "b": np.ones((), np.float32)}, ("a",))
    for wrong in ({"a": np.zeros(2, np.float32)}, {"a": np.zeros(3, np.float32), "b": np.zeros((), np.float32)}):
        with pytest.raises(CheckpointError, match="weights of another network"):
            module.load(wrong)
    assert module.tensors["a"].tolist() == [1, 1]


def test_a_copy_is_apart() -> None:
    module = Module({"a": np.ones(2, np.float32), "b": np.ones((), np.float32)}, ("a",))
    other = module.copy()
    other.flat[:] = 5
    other.tensors["b"][...] = 6
    assert module.tensors["a"].tolist() == [1, 1] and float(module.tensors["b"]) == 1 and other.tensors["a"].tolist() == [5, 5]


def test_moments_without_gradient_become_0_and_not_ever_smaller_numbers() -> None:
    _, _, _, flat = pair()
    flat.gradient[:] = 1e-3
    flat.step(1)
    flat.gradient[:] = 0
    for _ in range(1_500):
        flat.step(1)
    assert not flat.state()["adam/0/exp_avg"].any() and flat.state()["adam/0/exp_avg_sq"].all()
