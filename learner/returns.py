"""Targets and weights of value learning: pure functions of tensors. B items, n steps, A actions."""

from __future__ import annotations

import torch
from torch import Tensor


def n_step_return(reward: Tensor, steps: Tensor, terminated: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Sums the rewards of each item's m steps, and gives what its bootstrap value is to be multiplied with.

    reward: [B, n], r_t … r_{t+n-1}; entries from m on are ignored, whatever they are. steps: [B] int64, m in 1 … n.
    terminated: [B] bool, whether the episode terminated within the m steps (a truncated one did not).
    Returns [B] sum over k < m of gamma^k r_{t+k}, and [B] gamma^m, or 0 where terminated; both float32.
    Sutton and Barto 2018, eq. 7.1, with m = min(n, steps to the boundary).
    """
    assert reward.dim() == 2 and steps.shape == terminated.shape == reward.shape[:1]
    offset = torch.arange(reward.shape[1], device=reward.device)  # [n]
    taken = offset < steps[:, None]  # [B, n]
    discounted = reward.float() * torch.pow(gamma, offset)
    return_ = torch.where(taken, discounted, 0.0).sum(1)  # a mask, not a product: ignored entries may be NaN
    discount = torch.where(terminated, 0.0, torch.pow(gamma, steps))
    return return_, discount


def double_q_target(return_: Tensor, discount: Tensor, selecting: Tensor, valuing: Tensor) -> Tensor:
    """The value to learn: return + discount * valuing[argmax selecting].

    return_, discount: [B]. selecting, valuing: [B, A], next Q-values of the network that picks the action and of the one
    that values it; the same tensor twice gives the plain Q-learning target. Returns [B].
    Van Hasselt et al. 2016 (arXiv:1509.06461, eq. 4). Next values are ignored where the discount is 0.
    """
    assert return_.shape == discount.shape == selecting.shape[:1] and selecting.shape == valuing.shape
    bootstrap = valuing.gather(1, selecting.argmax(1, keepdim=True)).squeeze(1)  # [B]
    return return_ + torch.where(discount == 0, 0.0, discount * bootstrap)


def importance_weights(probability: Tensor, beta: float) -> Tensor:
    """Corrects for unequal sampling: (N P)^-beta, divided by the batch's largest. [B] in, [B] float32 in (0, 1] out.

    Schaul et al. 2016 (arXiv:1511.05952, section 3.4). N, the same for all items of a batch, cancels in the division,
    which leaves (min P / P)^beta and cannot overflow.
    """
    assert probability.dim() == 1
    return (probability.min() / probability).float() ** beta
