"""The losses of SAC, shared by `SacUpdate.plain` and by_hand.py."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from learner.algorithms.arithmetic.returns import n_step_return
from learner.algorithms.sac.config import SacConfig
from learner.updates.base import Transitions
from learner.updates.dense import KnownGradients


class Losses(NamedTuple):
    """The losses of b items. What is compared with rewards is divided by their running scale, if there is one."""

    value: Tensor | KnownGradients  # 0-d, the sum of the three losses
    critic: Tensor  # 0-d
    policy: Tensor  # 0-d
    td: Tensor  # [2, b] of each critic, 0 where one of them is not finite
    finite: Tensor  # [b]
    q: Tensor  # [2, b] of the actions taken
    log_prob: Tensor  # 0-d, the mean over actions drawn from the current policy


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
