"""DQN's loss: double Q-learning on n-step returns (van Hasselt et al. 2016, arXiv:1509.06461), and a weighted Huber loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from learner.algorithms.arithmetic.masks import masked
from learner.algorithms.arithmetic.transitions import Transition
from transport.experience import ExperienceSpec


class TdLoss(NamedTuple):
    """The loss of b items, and what it was computed from."""

    value: Tensor  # 0-d
    q: Tensor  # [b] Q-values of the actions taken
    td: Tensor  # [b] target - q, 0 where that is not finite
    finite: Tensor  # [b]


def double_q_target(spec: ExperienceSpec, step: Transition, selecting: Tensor, valuing: Tensor) -> Tensor:
    """The regression target return_ + discount * valuing[argmax selecting], [b], over the allowed actions.

    selecting, valuing: [b, n], next Q-values of the network that selects the action and of the one that evaluates it; the same
    tensor for both gives the plain Q-learning target. Next values are ignored where the discount is 0. Eq. 4 of the paper.
    """
    assert step.discount.shape == selecting.shape[:1] and selecting.shape == valuing.shape
    best = masked(spec, selecting, step.next_observation).argmax(1, keepdim=True)
    bootstrap = valuing.gather(1, best).squeeze(1)  # [b]
    return step.return_ + torch.where(step.discount == 0, 0.0, step.discount * bootstrap)


def weighted_huber(q: Tensor, td: Tensor, weight: Tensor, scale: Tensor | None) -> Tensor:
    """The weighted mean Huber loss, 0-d, of td / scale [b] as a function of q; without a scale that of td."""
    target = q.detach() + td
    if scale is not None:
        q, target = q / scale, target / scale
    return (weight * huber_loss(q, target, reduction="none")).mean()
