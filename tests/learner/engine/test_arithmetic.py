"""The arithmetic of learning in arrays against its twin in torch: on random inputs, some of them NaN and infinite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from learner.algorithms.arithmetic import returns as in_torch
from learner.algorithms.arithmetic import scaling as scaling_in_torch
from learner.engine import normaliser, returns, scaling
from learner.networks.inputs import Normaliser
from learner.networks.parts import Rescale
from tests.learner.engine.arrays import same

GAMMA = 0.9
SEEDS = range(20)
seeds = pytest.mark.parametrize("seed", SEEDS)
TARGETS = (
    ("gae", ("reward", "discount", "value", "next_value", "cut")),
    ("vtrace", ("reward", "discount", "value", "next_value", "cut", "ratio")),
    ("lambda_return", ("reward", "discount", "next_value", "cut")),
)
functions = pytest.mark.parametrize(("name", "arguments"), TARGETS, ids=[name for name, _ in TARGETS])


def all_same(found: Any, expected: Any) -> None:
    for one, other in zip(*((each if isinstance(each, tuple) else (each,)) for each in (found, expected)), strict=True):
        same(one, other)


def odd(values: np.ndarray, random: np.random.Generator, share: float) -> np.ndarray:
    """Some values are NaN or infinite."""
    kinds = random.choice(np.array([np.nan, np.inf, -np.inf], np.float32), values.shape)
    return np.where(random.random(values.shape) < share, kinds, values)


def stretches(seed: int, share: float) -> dict[str, np.ndarray]:
    """Steps [T, B] of which some terminate and some are cut; some numbers are not finite."""
    random = np.random.default_rng(seed)
    length, streams = random.integers(1, 70), random.integers(1, 5)
    shape = (length, streams)
    terminated = random.random(shape) < 0.1
    cut = terminated | (random.random(shape) < 0.1)
    cut[-1] = True
    normal = {name: random.normal(size=shape).astype(np.float32) for name in ("reward", "value", "next_value")}
    ratio = np.exp(random.normal(size=shape)).astype(np.float32)
    broken = {name: odd(column, random, share) for name, column in (normal | {"ratio": ratio}).items()}
    return broken | {"discount": np.where(terminated, np.float32(0), np.float32(GAMMA)), "cut": cut}


@seeds
@functions
@pytest.mark.parametrize("share", [0.0, 0.05])
@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
def test_advantages_and_targets_are_those_of_torch(
    name: str, arguments: tuple[str, ...], seed: int, share: float, decay: float
) -> None:
    columns = stretches(seed, share)
    given = [columns[argument] for argument in arguments]
    before = [column.copy() for column in given]
    expected = getattr(in_torch, name)(*(torch.from_numpy(column) for column in given), decay)
    with np.errstate(all="ignore"):
        all_same(getattr(returns, name)(*given, decay), expected)
        transposed = (np.ascontiguousarray(column.T).T for column in given)  # as rollouts give them
        all_same(getattr(returns, name)(*transposed, decay), expected)
    for column, kept in zip(given, before, strict=True):
        np.testing.assert_array_equal(column, kept, "an argument was changed")


@pytest.mark.parametrize(("name", "arguments"), TARGETS[:1])
def test_a_number_that_is_not_finite_stays_in_its_stretch(name: str, arguments: tuple[str, ...]) -> None:
    columns = stretches(3, 0.0) | {"reward": np.ones((40, 1), np.float32)}
    columns |= {key: np.zeros((40, 1), np.float32) for key in ("value", "next_value")}
    columns["discount"] = np.full((40, 1), np.float32(GAMMA))
    columns["cut"] = np.arange(40)[:, None] % 10 == 9
    columns["reward"][25] = np.nan
    with np.errstate(all="ignore"):
        found = getattr(returns, name)(*(columns[argument] for argument in arguments), 0.9)
    assert np.isnan(found[20:26]).all() and np.isfinite(found[:20]).all() and np.isfinite(found[26:]).all()


@seeds
@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_n_step_returns_are_those_of_torch(seed: int, gamma: float) -> None:
    random = np.random.default_rng(seed)
    items, n = 30, int(random.integers(1, 7))
    reward = odd(random.normal(size=(items, n)).astype(np.float32), random, 0.05)
    steps = random.integers(1, n + 1, items)
    reward[np.arange(n) >= steps[:, None]] = random.choice([np.nan, np.inf, 3.0])
    terminated = random.random(items) < 0.3
    with np.errstate(all="ignore"):
        found = returns.n_step_return(reward, steps, terminated, gamma)
    given = map(torch.from_numpy, (reward, steps, terminated))
    all_same(found, in_torch.n_step_return(*given, gamma=gamma))


@seeds
def test_errors_and_importance_weights_are_those_of_torch(seed: int) -> None:
    random = np.random.default_rng(seed)
    target, value = (odd(random.normal(size=40).astype(np.float32), random, 0.05) for _ in range(2))
    probability, beta = random.random(40) * 1e-5 + 1e-9, random.random()
    with np.errstate(all="ignore"):
        all_same(returns.td_error(target, value), in_torch.td_error(torch.from_numpy(target), torch.from_numpy(value)))
    expected = in_torch.importance_weights(torch.from_numpy(probability), beta)
    same(returns.importance_weights(probability, beta), expected / expected.max())


@seeds
@pytest.mark.parametrize("weighted", [False, True])
def test_running_statistics_are_those_of_torch(seed: int, weighted: bool) -> None:
    random = np.random.default_rng(seed)
    expected = Normaliser(3)
    count, mean, variance = np.zeros((), np.float32), np.zeros(3, np.float32), np.ones(3, np.float32)
    for part in range(6):
        values = random.normal([0, 10, -3], [1, 0.5, 50], (random.integers(0, 200), 3)).astype(np.float32)
        if part == 3:
            values = odd(values, random, 0.01) if seed % 2 else values * np.float32(1e36)
        weight = random.random(len(values)).astype(np.float32) + 0.01 if weighted else None
        expected.observe(torch.from_numpy(values), weight=None if weight is None else torch.from_numpy(weight))
        with np.errstate(all="ignore"):
            normaliser.observe(count, mean, variance, values, weight)
        assert float(count) == float(expected.count)
        np.testing.assert_allclose(mean, expected.mean.numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(variance, expected.variance.numpy(), rtol=1e-4)


@seeds
@pytest.mark.parametrize("tolerance", [(1.0, 1.0), (0.01, 30.0)])
def test_the_running_scale_is_that_of_torch_and_changes_no_value(seed: int, tolerance: tuple[float, float]) -> None:
    random = np.random.default_rng(seed)
    options = {"least_share": 0.05, "magnitude": 2.0, "tolerance": tolerance}
    weights, rescale = [random.normal(size=shape).astype(np.float32) for shape in ((3, 4), (3,))], Rescale()
    if seed % 4 == 1:
        rescale.scale.fill_(40.0)  # as it comes with the weights of a policy
    layers = [torch.from_numpy(each.copy()) for each in weights]
    expected = scaling_in_torch.TargetScale(rescale.scale, layers, **options)
    found = scaling.TargetScale(rescale.scale.numpy().copy(), weights, **options)
    size = 10.0 ** random.integers(-6, 8)
    for number in range(30):
        target, return_ = (float(np.float32(random.exponential(size))) for _ in range(2))
        if seed % 2 and random.random() < 0.2:
            target, return_ = map(float, random.choice([math.nan, math.inf, 0.0], 2))
        if number < 3:
            return_ = 0.0  # none yet
        if seed % 3 == 0:
            expected.begin(torch.tensor(return_))
            found.begin(return_)
        expected.observe(torch.tensor(target), torch.tensor(return_))
        found.observe(target, return_)
        assert found.tensors.keys() == expected.state_dict().keys()
        for name, value in expected.state_dict().items():
            assert found.tensors[name].shape == () and found.tensors[name].dtype == np.float32
            np.testing.assert_allclose(found.tensors[name], value.numpy(), rtol=1e-5, err_msg=name)
        for own, layer in zip(weights, layers, strict=True):
            np.testing.assert_allclose(own, layer.numpy(), rtol=1e-4)


@seeds
def test_squares_are_those_of_torch(seed: int) -> None:
    random = np.random.default_rng(seed)
    target = random.normal(size=20).astype(np.float32)
    return_ = np.where(random.random(20) < 0.5 * (seed % 3), target, np.float32(0))
    expected = scaling_in_torch.squares(torch.from_numpy(target), torch.from_numpy(return_))
    found = scaling.squares(target, return_)
    assert found == {name: pytest.approx(float(value), rel=1e-5) for name, value in expected.items()}
