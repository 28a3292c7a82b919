"""Whole chunks: which rows hold items, where returns end, rows with their frame stacks in time-major order, n-step returns."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from learner.algorithms.arithmetic.transitions import Stacked
from learner.networks.stacks import stack_rows
from learner.updates.base import Chunks, Tensors
from transport.experience import ExperienceSpec


class UnrollRows(NamedTuple):
    """Arguments of Body.unroll(): T rows of B chunks."""

    observation: Tensors  # {name: [T, B, stack, *shape]} as stored
    first: Tensor  # [T, B] bool: an episode begins with this row


class Returns(NamedTuple):
    """n-step returns of T rows, [T, B] each."""

    return_: Tensor  # sum over k < m of gamma^k r_{t+k}, m = min(n, steps to the boundary)
    discount: Tensor  # gamma^m, 0 where the episode terminated within the m steps
    steps: Tensor  # int64 m: the value to bootstrap from is that of row t + m


def item_rows(batch: Chunks, spec: ExperienceSpec) -> Tensor:
    """[B, L] bool: whether row history + i holds item i. Short chunks have fewer than L, and a row without action holds none."""
    valid = batch.valid[:, spec.history : -spec.n_step]
    return valid & (torch.arange(valid.shape[1], device=valid.device) < batch.length[:, None])


def zero_without(item: Tensor, column: Tensor) -> Tensor:
    """A column [B, L, …], 0 where there is no item."""
    return torch.where(item.reshape(*item.shape, *[1] * (column.dim() - 2)), column, 0)


def unrolled_rows(batch: Chunks, spec: ExperienceSpec, stacked: Stacked | None = None) -> UnrollRows:
    """The rows of B chunks from row stack-1 on: T = burn_in + L + n_step; row burn_in + i holds item i. Rows past a short chunk's
    last repeat it.

    A chunk's recurrent state (`Column.once`) is the one before the first of these rows. `stacked`: as for transition().
    """
    index = ending_at(stack_index(batch.episode_step, spec.stack), spec.burn_in + batch.length + spec.n_step - 1)
    index = index.transpose(0, 1).flatten(0, 1)  # [T * B, stack]
    rows = {name: column.flatten(0, 1) for name, column in batch.observation.items()}
    observation = stacked(rows, index, stack_rows) if stacked else stack_rows(rows, index)
    first = batch.episode_step[:, spec.stack - 1 :].T == 0
    return UnrollRows({name: column.unflatten(0, first.shape) for name, column in observation.items()}, first)


def ending_at(index: Tensor, last: Tensor) -> Tensor:
    """Repeats the row `last` [B] of each chunk of an index [B, rows, …] in all rows after it, which may hold anything."""
    row = torch.minimum(torch.arange(index.shape[1], device=index.device), last[:, None])
    return index.gather(1, row.reshape(*row.shape, *[1] * (index.dim() - 2)).expand_as(index))


def n_step_returns(reward: Tensor, terminated: Tensor, valid: Tensor, n: int, gamma: float) -> Returns:
    """Returns of the first T of T + n rows; all arguments [T + n, B]. A row without action (`valid` False) has no return of its
    own; the row before it bootstraps from it. Sutton and Barto 2018, eq. 7.1."""
    length = len(reward) - n
    going, ended = torch.ones_like(valid[:length]), torch.zeros_like(valid[:length])
    steps, return_ = torch.zeros_like(going, dtype=torch.int64), torch.zeros_like(reward[:length])
    for k in range(n):
        here = slice(k, k + length)
        return_ = return_ + torch.where(going, gamma**k * reward[here], 0.0)
        steps = steps + going
        ended = ended | (going & terminated[here])
        going = going & ~terminated[here] & valid[k + 1 : k + 1 + length]
    return Returns(return_, torch.where(ended, 0.0, torch.pow(gamma, steps)), steps)


def stack_index(episode_step: Tensor, stack: int) -> Tensor:
    """Indices of the rows of each row's frame stack, oldest first: [B, rows] int64 -> [B, rows - (stack - 1), stack] int64 into
    B * rows rows.

    A stack never reaches past its episode's first row, which is repeated instead, as in the actor's stack.
    """
    assert episode_step.dim() == 2
    chunks, rows = episode_step.shape
    row = torch.arange(chunks * rows, device=episode_step.device).reshape(chunks, rows)[:, stack - 1 :]
    back = torch.arange(stack - 1, -1, -1, device=episode_step.device)  # [stack] how many rows back each place is
    age = episode_step[:, stack - 1 :].clamp(min=0)  # rows past a chunk's last may hold anything
    return row[..., None] - torch.minimum(back, age[..., None])
