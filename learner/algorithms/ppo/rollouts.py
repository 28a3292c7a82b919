"""The items of a rollout, for minibatches, and the frame stacks of their observations."""

from __future__ import annotations

from typing import NamedTuple

import torch
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


def stack_rows(rows: Tensors, index: Tensor) -> Tensors:
    """Rows {name: [R, *shape]} by index [..., stack] -> {name: [..., stack, *shape]}. It copies: stack few items at a time."""
    flat = index.reshape(-1)
    return {name: column.index_select(0, flat).reshape(*index.shape, *column.shape[1:]) for name, column in rows.items()}


def stack_index(episode_step: Tensor, stack: int) -> Tensor:
    """Indices of the rows of each row's frame stack, oldest first: [B, rows] int64 -> [B, rows - history, stack] int64 into
    B * rows rows.

    A stack never reaches past its episode's first row, which is repeated instead, as in the actor's stack.
    """
    assert episode_step.dim() == 2
    chunks, rows = episode_step.shape
    row = torch.arange(chunks * rows, device=episode_step.device).reshape(chunks, rows)[:, stack - 1 :]
    back = torch.arange(stack - 1, -1, -1, device=episode_step.device)  # [stack] how many rows back each place is
    age = episode_step[:, stack - 1 :].clamp(min=0)  # rows past a chunk's last may hold anything
    return row[..., None] - torch.minimum(back, age[..., None])
