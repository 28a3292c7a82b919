"""What PPO makes of a rollout: items that are learned from in minibatches, and the stacks of their observations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from learner.updates.base import Tensors


class Steps(NamedTuple):
    """What gae and vtrace begin with, here [B, L]."""

    reward: Tensor
    discount: Tensor
    value: Tensor
    next_value: Tensor
    cut: Tensor


class Items(NamedTuple):
    """N items of a rollout, or of a minibatch of it. The observations stay rows of the rollout; they are stacked where they are
    needed."""

    observation_index: Tensor  # [N, stack] int64 into the rows: the stack of each item's observation, oldest first
    action: Tensor  # [N] int64, or [N, A] float32
    log_prob: Tensor  # [N] under the policy that the ratio is taken to
    value: Tensor  # [N] before the first step
    advantage: Tensor  # [N]
    return_: Tensor  # [N] what values are to become


def stack_rows(rows: Tensors, index: Tensor) -> Tensors:
    """Picks rows {name: [R, *shape]} by index [..., stack] -> {name: [..., stack, *shape]}: a copy, so best of a few items at
    a time."""
    flat = index.reshape(-1)
    return {name: column.index_select(0, flat).reshape(*index.shape, *column.shape[1:]) for name, column in rows.items()}


def stack_index(episode_step: Tensor, stack: int) -> Tensor:
    """Which rows make up each row's stack, oldest first: [B, rows] int64 -> [B, rows - history, stack] int64 into B * rows rows.

    A stack never looks past its episode's first row, which then repeats, as the actor's stack does.
    """
    assert episode_step.dim() == 2
    chunks, rows = episode_step.shape
    row = torch.arange(chunks * rows, device=episode_step.device).reshape(chunks, rows)[:, stack - 1 :]
    back = torch.arange(stack - 1, -1, -1, device=episode_step.device)  # [stack] how far back each place looks
    age = episode_step[:, stack - 1 :].clamp(min=0)  # rows past a chunk's last may hold anything
    return row[..., None] - torch.minimum(back, age[..., None])
