"""What REPPO's losses are made of: critics with bins, the KL divergence of two policies, and the running scale of scale.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from learner.algorithms.arithmetic.returns import lambda_return
from learner.algorithms.arithmetic.rollouts import Rollout
from learner.algorithms.arithmetic.squashed import GREATEST_LOG_STD, LEAST_LOG_STD
from learner.algorithms.reppo.bins import DEVIATION, MIDDLES, REACH
from learner.algorithms.reppo.scale import LEAST_SHARE, STATISTICS, TYPICAL
from learner.algorithms.sac.networks import Critics
from learner.parallel.base import Group


def bounded_log_std(output: Tensor) -> Tensor:
    """The policy's output [N, 2A], with log-stds within their bounds."""
    mean, log_std = output.chunk(2, 1)
    return torch.cat([mean, log_std.clamp(LEAST_LOG_STD, GREATEST_LOG_STD)], 1)


def divergence(output: Tensor, before: Tensor) -> Tensor:
    """KL(before | output) [N] of Gaussians given by mean and log-std [N, 2A]. The tanh of both leaves it unchanged.

    `before` has log-stds within their bounds.
    """
    mean, log_std = bounded_log_std(output).chunk(2, 1)
    old_mean, old_log_std = before.chunk(2, 1)
    precision = torch.exp(-2 * log_std)
    quotient = torch.exp(2 * old_log_std) * precision + (mean - old_mean).square() * precision
    return (log_std - old_log_std + 0.5 * quotient - 0.5).sum(1)


class BinnedCritics(Critics):
    """Their outputs are the logits of bins, and a value is the mean of the bins' distribution (bins.py)."""

    middles: Tensor

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.register_buffer("middles", torch.from_numpy(MIDDLES.copy()), persistent=False)

    def value(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1) @ self.middles


def loss_of_bins(outputs: Tensor, target: Tensor, finite: Tensor, middles: Tensor) -> Tensor:
    """The sum over the critics of their mean cross-entropies, 0-d, by their outputs [critics, b, BINS] for targets [b]; 0 where
    the item is not `finite` [b]."""
    entropy = -(spread(torch.where(finite, target, 0.0), middles) * outputs.log_softmax(-1)).sum(-1)  # [critics, b]
    return torch.where(finite, entropy, 0.0).mean(1).sum()


def spread(target: Tensor, middles: Tensor) -> Tensor:
    """Targets [b], and the bins' middles [BINS] -> distributions over the bins [b, BINS]."""
    distance = (target.clamp(-REACH, REACH)[:, None] - middles) / DEVIATION
    return (-0.5 * distance.square()).softmax(-1)


class ReturnScale(nn.Module):
    """As that of scale.py."""

    count: Tensor
    square: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, first in STATISTICS.items():
            self.register_buffer(name, torch.tensor(first))

    @torch.no_grad()
    def observe(self, square: Tensor) -> Tensor:
        """`square`: 0-d. Returns the scale before divided by the new one, 0-d."""
        count = self.count + 1
        mean = torch.lerp(self.square, square, (1 / count).clamp(min=LEAST_SHARE))
        scale = mean.sqrt() / TYPICAL
        usable = (scale > 0) & scale.isfinite()
        ratio = torch.where(usable, self.scale / scale, 1.0)
        for name, value in (("count", count), ("square", mean), ("scale", scale)):
            own = getattr(self, name)
            own.copy_(torch.where(usable, value, own))
        return ratio


def value_square(rollout: Rollout, gamma: float, group: Group) -> Tensor:
    """As that of scale.py, over the items of all processes, 0-d."""
    discount, cut = rollout.discount.T, rollout.cut.T
    every = torch.where(discount == 0, 1.0, 1 - gamma)
    nothing = torch.zeros_like(discount)
    parts = (lambda_return(each, discount, nothing, cut, 1.0).T for each in (rollout.reward.T, every))
    sums, shares = (group.mean(rollout.of_items(part).square().sum()) for part in parts)
    return sums / shares
