"""What SAC's losses are made of."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from learner.algorithms.arithmetic import gaussian
from learner.algorithms.arithmetic.returns import n_step_return
from learner.algorithms.arithmetic.squashed import GREATEST_LOG_STD, LEAST_LOG_STD
from learner.algorithms.sac.config import SacConfig
from learner.updates.base import Transitions


class Losses(NamedTuple):
    """The losses of b items. What is compared with rewards is divided by their running scale, if there is one."""

    value: Tensor  # 0-d, the sum of the three losses
    critic: Tensor  # 0-d
    policy: Tensor  # 0-d
    td: Tensor  # [2, b] of each critic, 0 where one of them is not finite
    finite: Tensor  # [b]
    q: Tensor  # [2, b] of the actions taken
    log_prob: Tensor  # 0-d, the mean over actions drawn from the current policy


def draw(output: Tensor) -> tuple[Tensor, Tensor]:
    """The policy's output [N, 2A] -> bounded actions drawn from it [N, A], and their log-density [N]."""
    mean, raw = output.chunk(2, 1)
    log_std = raw.clamp(LEAST_LOG_STD, GREATEST_LOG_STD)
    action = mean + log_std.exp() * torch.randn_like(log_std)
    return torch.tanh(action), gaussian.log_prob(action, mean, log_std)


def soft_target(batch: Transitions, next_value: Tensor, config: SacConfig, scale: Tensor) -> Tensor:
    """The critics' regression target [b], eq. 2 and 3 of the paper. Next values are ignored where the episode terminated.

    Targets and next values are divided by `scale`, 0-d; see TargetScale.
    """
    factor = config.reward_scale / scale
    return_, discount = n_step_return(batch.reward * factor, batch.steps, batch.terminated, config.gamma)
    target = return_ + torch.where(discount == 0, 0.0, discount * next_value)
    if config.clip_targets:
        target = target.maximum(-factor / (1 - config.gamma)).clamp(max=0.0)
    return target


def imitation_loss(mean: Tensor, action: Tensor, q: Tensor) -> Tensor:
    """The mean squared distance between the policy's bounded mean actions and those taken, both unbounded here, [b, A], times the
    mean size of the values `q` [b], 0-d. Fujimoto and Gu 2021 (arXiv:2106.06860, eq. 5), times lambda / alpha."""
    return q.detach().abs().mean() * (torch.tanh(mean) - torch.tanh(action)).square().mean()


def loss_of_critics(q: Tensor, target: Tensor, finite: Tensor) -> Tensor:
    """The sum over the critics of their mean losses, half the squared error, 0-d, by their values [2, b] for targets [b]; 0 where
    the item is not `finite` [b]."""
    return 0.5 * torch.where(finite, target - q, 0.0).square().mean(1).sum()
