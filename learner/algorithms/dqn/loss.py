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


def munchausen_target(
    spec: ExperienceSpec, step: Transition, now: Tensor, following: Tensor, alpha: float, temperature: Tensor, least: Tensor
) -> Tensor:
    """The regression target [b]: r + alpha max(least, tau log pi(a|s)) + discount sum_b pi(b|s') (q(s', b) - tau log pi(b|s')),
    with r the n-step return and pi = softmax(q / tau) over the allowed actions.

    now, following: [b, n], Q-values by the target network, of the observations and of the next ones. The sum over the next
    actions is the soft value tau log sum exp(q / tau). Vieillard et al. 2020 (arXiv:2007.14430, eq. 2); there n is 1.
    """
    now, following = masked(spec, now, step.observation), masked(spec, following, step.next_observation)
    taken = now.gather(1, step.action[:, None]).squeeze(1)
    log_policy = torch.minimum(torch.maximum(taken - soft_value(now, temperature), least), torch.zeros_like(least))
    bootstrap = soft_value(following, temperature)
    return step.return_ + alpha * log_policy + torch.where(step.discount == 0, 0.0, step.discount * bootstrap)


def soft_value(values: Tensor, temperature: Tensor) -> Tensor:
    """temperature * log sum exp(values / temperature), [b, n] -> [b]."""
    greatest = values.max(1, keepdim=True).values
    return (greatest + temperature * ((values - greatest) / temperature).logsumexp(1, keepdim=True)).squeeze(1)


def conservative(
    spec: ExperienceSpec, step: Transition, values: Tensor, q: Tensor, weight: Tensor, scale: Tensor | None
) -> Tensor:
    """The weighted mean of log sum exp q(s, .) - q(s, a), 0-d, over the allowed actions, in units of the scale.

    values: [b, n], of all actions; q: [b], of those taken. Kumar et al. 2020 (arXiv:2006.04779, eq. 4).
    """
    values = masked(spec, values, step.observation)
    if scale is not None:
        values, q = values / scale, q / scale
    return (weight * (values.logsumexp(1) - q)).mean()


def weighted_huber(q: Tensor, td: Tensor, weight: Tensor, scale: Tensor | None) -> Tensor:
    """The weighted mean Huber loss, 0-d, of td / scale [b] as a function of q; without a scale that of td."""
    target = q.detach() + td
    if scale is not None:
        q, target = q / scale, target / scale
    return (weight * huber_loss(q, target, reduction="none")).mean()
