"""The bins of a categorical critic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from learner.algorithms.reppo.bins import BINS, DEVIATION, MIDDLES, REACH
from learner.algorithms.reppo.bins import spread as spread_in_numpy
from learner.algorithms.reppo.losses import loss_of_bins, spread

IN_TORCH = torch.from_numpy(MIDDLES.copy())


def test_the_distribution_of_a_target_has_it_as_its_mean_and_three_quarters_of_a_bin_as_its_deviation() -> None:
    target = torch.linspace(-REACH + 1, REACH - 1, 1_001)
    found = spread(target, IN_TORCH)
    assert found.shape == (1_001, BINS)
    torch.testing.assert_close(found.sum(1), torch.ones(1_001))
    torch.testing.assert_close(found @ IN_TORCH, target, rtol=0, atol=4e-5)
    deviation = (found * (IN_TORCH - target[:, None]).square()).sum(1).sqrt()
    torch.testing.assert_close(deviation, torch.full_like(target, DEVIATION), rtol=1e-2, atol=0)


def test_targets_out_of_reach_are_the_outermost_bins() -> None:
    found = spread(torch.tensor([-1e9, 1e9, -REACH, REACH]), IN_TORCH)
    torch.testing.assert_close(found[:2], found[2:])
    assert found.argmax(1).tolist() == [0, BINS - 1, 0, BINS - 1]


def test_torch_and_numpy_spread_alike() -> None:
    target = 1.2 * REACH * torch.randn(1_000, generator=torch.Generator().manual_seed(0)) / 2
    np.testing.assert_allclose(spread(target, IN_TORCH).numpy(), spread_in_numpy(target.numpy()), atol=2e-6)


def test_the_loss_of_bins_is_the_cross_entropy_of_finite_items() -> None:
    logits, target = torch.randn(2, 5, BINS), torch.tensor([1.0, -3.0, torch.inf, 0.0, 20.0])
    kept = [0, 1, 3, 4]
    expected = sum(cross_entropy(each[kept], spread(target[kept], IN_TORCH), reduction="sum") / 5 for each in logits)
    assert loss_of_bins(logits, target, target.isfinite(), IN_TORCH).item() == pytest.approx(float(expected), rel=1e-5)
