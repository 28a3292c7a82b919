"""Turns a batch's row windows into n-step transitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from learner.algorithms.arithmetic.returns import n_step_return
from learner.networks.inputs import Inputs, Plain
from learner.networks.stacks import stack_windows
from learner.parallel.base import Group
from learner.updates.base import Tensors, Transitions

Stacked = Callable[[Tensors, Tensor, Plain], Tensors]


class Transition(NamedTuple):
    """An n-step transition. Observations are {name: [B, stack, *shape]} as stored; the network dequantises them."""

    observation: Tensors
    action: Tensor  # [B] int64, or [B, A]
    return_: Tensor  # [B] sum over k < m of gamma^k r_{t+k}
    discount: Tensor  # [B] gamma^m, 0 where the episode terminated (not where truncated)
    next_observation: Tensors


def transition(batch: Transitions, gamma: float, stacked: Stacked | None = None) -> Transition:
    """Stacks the observations and sums the rewards of a batch.

    `stacked`: Body.stacked of the network that will read the observations; it may stack images in a faster way.
    """
    return_, discount = n_step_return(batch.reward, batch.steps, batch.terminated, gamma)
    indices = batch.observation_index, batch.next_index
    now, following = (
        stacked(batch.observation, index, stack_windows) if stacked else stack_windows(batch.observation, index)
        for index in indices
    )
    return Transition(now, batch.action, return_, discount, following)


def observe(inputs: Inputs, batch: Transitions, group: Group) -> None:
    """Updates the running statistics of the inputs by the newest row of each item's observation_t.

    Items are weighted by 1 / probability, so that the statistics are those of all that replay holds, however it samples.
    """
    if inputs.normaliser is None:
        return
    newest = batch.observation_index[:, -1:]
    rows = stack_windows({field.name: batch.observation[field.name] for field in inputs.vectors}, newest)
    which = torch.arange(len(newest), device=newest.device)
    inputs.observe({name: column[:, 0] for name, column in rows.items()}, which, group, 1 / batch.probability)
