"""Rollouts: whole chunks on the device as replay gave them, and the items that are learned from in minibatches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from transport.experience import ExperienceSpec


class Rollout(NamedTuple):
    """B chunks on the device: every column as it rests, [B, rows, …] with rows = history + L + 1.

    Row history + i holds item i; the row after the last item, history + length, is only there to bootstrap from. A row with
    valid False has no action: it holds the last observation of a truncated episode. Rows past that one mean nothing.
    """

    observation: dict[str, Tensor]  # {name: [B, rows, *shape]} as stored
    action: Tensor  # [B, rows] int64, or [B, rows, A] float32
    reward: Tensor  # [B, rows] float32
    terminated: Tensor  # [B, rows] bool
    truncated: Tensor  # [B, rows] bool
    valid: Tensor  # [B, rows] bool
    episode_step: Tensor  # [B, rows] int64
    log_prob: Tensor  # [B, rows] float32: of the action, under the policy that chose it
    policy_version: Tensor  # [B, rows] int32
    length: Tensor  # [B] int64: items of each chunk, at most L


class Items(NamedTuple):
    """N items of a rollout, or of a minibatch of it. The observations stay rows; they are stacked where they are needed."""

    rows: dict[str, Tensor]  # {name: [R, *shape]} as stored, all rows of the rollout
    observation_index: Tensor  # [N, stack] int64 into rows: the stack of each item's observation, oldest first
    action: Tensor  # [N] int64, or [N, A] float32
    log_prob: Tensor  # [N] under the policy that the ratio is taken to
    value: Tensor  # [N] before the first update
    advantage: Tensor  # [N]
    return_: Tensor  # [N] what values are to become

    @property
    def size(self) -> int:
        """N."""
        return len(self.observation_index)

    def part(self, start: int, stop: int) -> Items:
        """Items start … stop-1: views, no copies."""
        return Items(self.rows, *(column[start:stop] for column in self[1:]))

    def take(self, which: Tensor) -> Items:
        """The items that `which` [M] int64 names."""
        return Items(self.rows, *(column.index_select(0, which) for column in self[1:]))

    def stacked(self) -> dict[str, Tensor]:
        """{name: [N, stack, *shape]} as stored, what the policy saw: a copy, so best of a few items at a time."""
        return stack_rows(self.rows, self.observation_index)


def stack_rows(rows: dict[str, Tensor], index: Tensor) -> dict[str, Tensor]:
    """Picks rows {name: [R, *shape]} by index [..., stack] -> {name: [..., stack, *shape]}."""
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


def to_rollout(arrays: dict[str, np.ndarray], spec: ExperienceSpec, device: torch.device) -> Rollout:
    """Arrays of whole chunks, named as replay names them, on the device: copied once, or on a CPU not at all for what keeps its
    type, so keep their memory until the rollout has been learned from."""

    def move(name: str, dtype: torch.dtype | None = None) -> Tensor:
        return torch.from_numpy(arrays[name]).to(device, dtype)

    action = move("action")
    return Rollout(
        observation={field.name: move(f"observation/{field.name}") for field in spec.fields},
        action=action if action.is_floating_point() else action.long(),
        reward=move("reward"),
        terminated=move("terminated", torch.bool),
        truncated=move("truncated", torch.bool),
        valid=move("valid", torch.bool),
        episode_step=move("episode_step", torch.int64),
        log_prob=move("log_prob"),
        policy_version=move("policy_version"),
        length=move("length", torch.int64),
    )
