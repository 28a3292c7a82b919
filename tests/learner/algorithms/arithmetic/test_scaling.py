"""The running scale of targets against numpy, and that no output changes with it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learner.algorithms.arithmetic.scaling import LEAST_SHARE, MAGNITUDE, SQUARES, TargetScale, squares
from learner.networks.parts import Rescale


def made(*layers: Tensor) -> TargetScale:
    return TargetScale(torch.ones(()), layers)


def observe(scaling: TargetScale, target: float, return_: float) -> float:
    scaling.observe(torch.tensor(target), torch.tensor(return_))
    return float(scaling.scale)


def test_the_scale_is_a_running_root_mean_square_of_targets() -> None:
    scaling, random = made(), np.random.default_rng(0)
    mean = 0.25
    observe(scaling, 1e4, mean)  # noise: outputs before the first scale
    for number in range(1, 300):
        square = float(random.exponential(5.0)) * (1 + number)
        mean += max(1 / (number + 1), LEAST_SHARE) * (square - mean)
        assert observe(scaling, square, 1e-3) == pytest.approx(math.sqrt(mean) / MAGNITUDE, rel=1e-3)


def test_until_a_reward_is_found_nothing_is_scaled() -> None:
    scaling = made()
    assert [observe(scaling, 0.01, 0.0) for _ in range(50)] == [1.0] * 50 and float(scaling.count) == 0
    assert observe(scaling, 400.0, 9.0) == pytest.approx(3 / MAGNITUDE), "what was seen before the first reward does not count"


def test_where_rewards_are_no_longer_found_the_scale_stays_near_what_they_were() -> None:
    scaling = made()
    observe(scaling, 100.0, 100.0)
    for _ in range(2_000):
        least = observe(scaling, 0.0, 0.0)
    assert least == pytest.approx(math.sqrt(100 / 2_001) / MAGNITUDE, rel=1e-3)


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_what_would_not_be_a_scale_changes_nothing(odd: float) -> None:
    weight = torch.ones(3)
    scaling = made(weight)
    observe(scaling, 4.0, 1.0)
    before = {name: value.clone() for name, value in scaling.state_dict().items()}, weight.clone()
    scaling.observe(torch.tensor(odd), torch.tensor(odd))
    assert all(torch.equal(value, before[0][name]) for name, value in scaling.state_dict().items())
    assert torch.equal(weight, before[1])


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e7])
def test_outputs_stay_the_same_when_the_scale_changes(size: float) -> None:
    torch.manual_seed(0)
    last, rescale = nn.Linear(5, 3), Rescale()
    network, rows = nn.Sequential(last, rescale), torch.randn(8, 5)
    scaling = TargetScale(rescale.scale, last.parameters())
    first = last(rows)
    assert observe(scaling, 1.0, size**2) == pytest.approx(size / MAGNITUDE)
    before = network(rows)
    assert torch.equal(last(rows), first), "the first scale is that of the outputs"
    for number in range(20):
        observe(scaling, (size * (1 + number)) ** 2, size**2)
    assert float(rescale.scale) > size / MAGNITUDE
    torch.testing.assert_close(network(rows), before, rtol=1e-5, atol=1e-6 * size)
    torch.testing.assert_close(last(rows) * rescale.scale, before, rtol=1e-5, atol=1e-6 * size)


def test_a_scale_that_comes_with_a_policys_weights_changes_no_output_either() -> None:
    torch.manual_seed(0)
    last, rescale = nn.Linear(5, 3), Rescale()
    rescale.scale.fill_(40.0)  # as --learner.weights does, which brings no statistics
    network, rows = nn.Sequential(last, rescale), torch.randn(8, 5)
    scaling, before = TargetScale(rescale.scale, last.parameters()), network(rows)
    assert observe(scaling, 1e4, 0.0) == 40.0, "no reward yet"
    assert observe(scaling, 1e4, 4.0) == pytest.approx(100 / MAGNITUDE)
    torch.testing.assert_close(network(rows), before)


def test_squares_are_means_over_the_items_and_those_of_rewards_over_items_that_have_one() -> None:
    found = squares(torch.tensor([1.0, -3.0, 0.0]), torch.tensor([0.0, 2.0, 4.0]))
    assert {name: pytest.approx(float(value)) for name, value in found.items()} == {SQUARES[0]: 10 / 3, SQUARES[1]: 10.0}
    assert float(squares(torch.zeros(3), torch.zeros(3))[SQUARES[1]]) == 0.0


def test_the_scale_stays_one_within_the_tolerance_and_follows_the_targets_once_it_has_left_it() -> None:
    weight = torch.ones(3)
    scaling = TargetScale(torch.ones(()), [weight], tolerance=(0.1, 10.0))
    assert [observe(scaling, size, size) for size in (4.0, 9_000.0, 2.0)] == [1.0] * 3
    assert torch.equal(weight, torch.ones(3))
    left = observe(scaling, 1e8, 1.0)
    assert left > 10.0
    torch.testing.assert_close(weight, torch.ones(3) / left)  # so that no output changes
    for _ in range(2_000):
        last = observe(scaling, 4.0, 1.0)
    assert last < 10.0 and last != 1.0
