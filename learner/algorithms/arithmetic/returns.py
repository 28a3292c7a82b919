"""Targets, advantages and weights: pure functions of tensors. B items or streams, n or T steps, A actions."""

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
    discount = torch.where(terminated, 0.0, torch.pow(gamma, steps))
    if reward.shape[1] == 1:
        return reward[:, 0].float(), discount
    offset = torch.arange(reward.shape[1], device=reward.device)  # [n]
    taken = offset < steps[:, None]  # [B, n]
    discounted = reward.float() * torch.pow(gamma, offset)
    return torch.where(taken, discounted, 0.0).sum(1), discount  # a mask, not a product: ignored entries may be NaN


def double_q_target(return_: Tensor, discount: Tensor, selecting: Tensor, valuing: Tensor) -> Tensor:
    """The value to learn: return + discount * valuing[argmax selecting].

    return_, discount: [B]. selecting, valuing: [B, A], next Q-values of the network that picks the action and of the one
    that values it; the same tensor twice gives the plain Q-learning target. Returns [B].
    Van Hasselt et al. 2016 (arXiv:1509.06461, eq. 4). Next values are ignored where the discount is 0.
    """
    assert return_.shape == discount.shape == selecting.shape[:1] and selecting.shape == valuing.shape
    bootstrap = valuing.gather(1, selecting.argmax(1, keepdim=True)).squeeze(1)  # [B]
    return return_ + torch.where(discount == 0, 0.0, discount * bootstrap)


def td_error(target: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """target - value [B], 0 where that is not finite; and whether it is finite [B]."""
    td = target - value
    finite = td.isfinite()
    return torch.where(finite, td, 0.0), finite


def importance_weights(probability: Tensor, beta: float) -> Tensor:
    """Corrects for unequal sampling: P^-beta. [B] in, [B] float32 out, to be divided by the largest of all that is learned from.

    Schaul et al. 2016 (arXiv:1511.05952, section 3.4), whose (N P)^-beta has a factor more that cancels in the division.
    """
    assert probability.dim() == 1
    return probability.float() ** -beta


def gae(reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, cut: Tensor, trace: float) -> Tensor:
    """Generalised advantage estimates A_t = delta_t + discount_t trace A_{t+1}, delta_t = r_t + discount_t V_{t+1} - V_t.

    All [T, B]; returns [T, B]. discount: 0 where the episode terminated. next_value: the value of the observation that step t led
    to, which at truncation is the episode's last; ignored where the discount is 0. cut: bool, the sum ends with this step (its
    episode did, or the row after it is no step of this stretch); nothing that follows reaches it, not even NaN.
    Schulman et al. 2016 (arXiv:1506.02438, eq. 16), as a recursion.
    """
    assert reward.dim() == 2 and reward.shape == discount.shape == value.shape == next_value.shape == cut.shape
    delta = reward + torch.where(discount == 0, 0.0, discount * next_value) - value
    return _backward_sum(delta, discount * trace, cut)


def vtrace(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, cut: Tensor, ratio: Tensor, trace: float
) -> tuple[Tensor, Tensor]:
    """V-trace targets v_t and advantages of steps that another policy took; as gae() where that policy is the same.

    All [T, B] as for gae; ratio: pi(a|x) / mu(a|x), of the policy to be learned to the one that acted. Returns
    v_t = V_t + rho_t delta_t + discount_t c_t (v_{t+1} - V_{t+1}) with rho_t = min(1, ratio) and c_t = trace * min(1, ratio);
    and the advantage rho_t (r_t + discount_t (V_{t+1} + trace (v_{t+1} - V_{t+1})) - V_t); both [T, B].
    Espeholt et al. 2018 (arXiv:1802.01561, eq. 1 with remarks 1 and 2; section 4.2 for the advantage, whose v_{t+1} is here
    mixed with V_{t+1} by the trace, so that with all ratios 1 it is GAE's).
    """
    assert reward.dim() == 2 and reward.shape == discount.shape == value.shape == next_value.shape == cut.shape == ratio.shape
    truncated_ratio = ratio.clamp(max=1.0)  # rho and, but for the trace, c
    delta = reward + torch.where(discount == 0, 0.0, discount * next_value) - value
    correction = _backward_sum(truncated_ratio * delta, discount * trace * truncated_ratio, cut)  # v_t - V_t
    following = torch.cat([correction[1:], torch.zeros_like(correction[:1])])
    advantage = truncated_ratio * (delta + torch.where(cut, 0.0, discount * trace * following))
    return value + correction, advantage


def _backward_sum(term: Tensor, carry: Tensor, cut: Tensor) -> Tensor:
    """S_t = term_t + carry_t S_{t+1}, or term_t alone where cut; [T, B]."""
    total = torch.zeros_like(term[0])
    sums = []
    for t in range(len(term) - 1, -1, -1):
        total = term[t] + torch.where(cut[t], 0.0, carry[t] * total)
        sums.append(total)
    return torch.stack(sums[::-1])
