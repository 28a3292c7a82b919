"""The items of a rollout, or its whole chunks, for minibatches."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from learner.updates.base import Tensors


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


class Sequences(NamedTuple):
    """N chunks of a rollout or of a minibatch, for a policy with memory: its state follows the rows, so chunks stay whole."""

    items: Items  # [N, L, …]; 0 where there is no item, and there the rows of an observation are those of the chunk's last row
    first: Tensor  # [N, L] bool: an episode begins with this row
    item: Tensor  # [N, L] bool
    weight: Tensor  # [N, L] of each item in a mean over all L of all N: 0 where there is no item
    state: Tensors  # {name: [N, width]} that the actor had before the first row


Batchable = Any  # Items or Sequences: minibatches and micro-batches are parts of it along axis 0
