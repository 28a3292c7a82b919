"""Returns, targets, advantages and importance weights: pure functions of tensors. B items or streams, n or T steps, A actions."""

from __future__ import annotations

import torch
from torch import Tensor


def n_step_return(reward: Tensor, steps: Tensor, terminated: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """The discounted sum of the rewards of each item's m steps, and the factor of its bootstrap value.

    reward: [B, n], r_t … r_{t+n-1}; entries from m on are ignored and may be NaN. steps: [B] int64, m in 1 … n.
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
    return torch.where(taken, discounted, 0.0).sum(1), discount  # where, not a product: ignored entries may be NaN


def td_error(target: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """target - value [B], 0 where that is not finite; and whether it is finite [B]."""
    td = target - value
    finite = td.isfinite()
    return torch.where(finite, td, 0.0), finite


def importance_weights(probability: Tensor, beta: float) -> Tensor:
    """Weights P^-beta that correct for prioritised sampling, [B] -> [B] float32; divide them by the largest of the batch.

    Schaul et al. 2016 (arXiv:1511.05952, section 3.4); the factor N^-beta of the paper cancels in that division.
    """
    assert probability.dim() == 1
    return probability.float() ** -beta


def gae(reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, cut: Tensor, gae_lambda: float) -> Tensor:
    """Generalised advantage estimates A_t = delta_t + discount_t gae_lambda A_{t+1}, delta_t = r_t + discount_t V_{t+1} - V_t.

    All [T, B]; returns [T, B]. discount: 0 where the episode terminated. next_value: the value of the observation after step t,
    at truncation that of the episode's last observation; ignored where the discount is 0. cut: bool, True at the last step of an
    episode and where the next row is no step of the rollout; nothing after a cut affects the steps before it, not even NaN.
    Schulman et al. 2016 (arXiv:1506.02438, eq. 16), as a recursion.
    """
    assert reward.dim() == 2 and reward.shape == discount.shape == value.shape == next_value.shape == cut.shape
    delta = reward + torch.where(discount == 0, 0.0, discount * next_value) - value
    return _backward_sum(delta, discount * gae_lambda, cut)


def vtrace(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, cut: Tensor, ratio: Tensor, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """V-trace targets v_t and advantages of steps that an older policy took; equal to gae() where all ratios are 1.

    All [T, B] as for gae; ratio: pi(a|x) / mu(a|x), the policy being learned over the one that acted. With lambda = gae_lambda,
    rho_t = min(1, ratio) and c_t = lambda * min(1, ratio), returns
    v_t = V_t + rho_t delta_t + discount_t c_t (v_{t+1} - V_{t+1}), and the advantage
    rho_t (r_t + discount_t (V_{t+1} + lambda (v_{t+1} - V_{t+1})) - V_t); both [T, B].
    Espeholt et al. 2018 (arXiv:1802.01561, eq. 1 with remarks 1 and 2; section 4.2 for the advantage, whose v_{t+1} is here
    interpolated with V_{t+1} by lambda, so that it is GAE's where all ratios are 1).
    """
    assert reward.dim() == 2 and reward.shape == discount.shape == value.shape == next_value.shape == cut.shape == ratio.shape
    truncated_ratio = ratio.clamp(max=1.0)  # rho; c without the factor lambda
    delta = reward + torch.where(discount == 0, 0.0, discount * next_value) - value
    correction = _backward_sum(truncated_ratio * delta, discount * gae_lambda * truncated_ratio, cut)  # v_t - V_t
    following = torch.cat([correction[1:], torch.zeros_like(correction[:1])])
    advantage = truncated_ratio * (delta + torch.where(cut, 0.0, discount * gae_lambda * following))
    return value + correction, advantage


def lambda_return(reward: Tensor, discount: Tensor, next_value: Tensor, cut: Tensor, q_lambda: float) -> Tensor:
    """Peng's Q(lambda): R_t = r_t + discount_t ((1 - lambda) V_{t+1} + lambda R_{t+1}), with V the greatest Q-value of the state.

    All [T, B]; returns [T, B]. discount: 0 where the episode terminated. next_value: V of the observation after step t, at
    truncation that of the episode's last observation; ignored where the discount is 0. cut: bool, True at the last step of an
    episode and where the next row is no step of the rollout: there R_t = r_t + discount_t V_{t+1}, and nothing after a cut
    affects the steps before it, not even NaN.
    Peng and Williams 1996 (doi:10.1007/BF00114731), as in Kozuno et al. 2021 (arXiv:2103.00107).
    """
    assert reward.dim() == 2 and reward.shape == discount.shape == next_value.shape == cut.shape
    bootstrap = torch.where(cut, discount, discount * (1 - q_lambda))
    return _backward_sum(reward + torch.where(bootstrap == 0, 0.0, bootstrap * next_value), discount * q_lambda, cut)


def _backward_sum(term: Tensor, carry: Tensor, cut: Tensor) -> Tensor:
    """S_t = term_t + carry_t S_{t+1}, or term_t alone where cut; [T, B]."""
    total = torch.zeros_like(term[0])
    sums = []
    for t in range(len(term) - 1, -1, -1):
        total = term[t] + torch.where(cut[t], 0.0, carry[t] * total)
        sums.append(total)
    return torch.stack(sums[::-1])
