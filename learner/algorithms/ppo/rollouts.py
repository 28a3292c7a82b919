"""The items of a rollout, for minibatches."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Steps(NamedTuple):
    """The arguments that gae() and vtrace() share, here [B, L]."""

    reward: Tensor
    discount: Tensor
    value: Tensor
    next_value: Tensor
    cut: Tensor


class Items(NamedTuple):
    """N items of a rollout or of a minibatch. They index the rollout's rows, which are stacked only where they are needed."""

    observation_index: Tensor  # [N, stack] int64 into the rows: the stack of each item's observation, oldest first
    action: Tensor  # [N] int64, or [N, A] float32
    log_prob: Tensor  # [N] under the policy in the ratio's denominator
    value: Tensor  # [N] before the first step of this rollout
    advantage: Tensor  # [N]
    return_: Tensor  # [N] targets of the value function
