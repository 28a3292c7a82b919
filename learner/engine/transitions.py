"""n-step transitions in arrays: what learner/algorithms/arithmetic/transitions.py makes in torch of a batch's row windows."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from learner.engine.normaliser import observe
from learner.engine.returns import n_step_return
from learner.program.inputs import Inputs
from transport.experience import Columns

if TYPE_CHECKING:
    from learner.updates.base import Transitions

STATISTICS_INTERVAL = 8  # updates between two batches that running statistics take in: each costs about a tenth of an update


class Transition(NamedTuple):
    """B n-step transitions."""

    observation: Columns  # {name: [2B, stack, *shape]} as stored: those of all steps t, then those of the steps t+m
    action: np.ndarray  # [B] int64, or [B, A]
    return_: np.ndarray  # [B] sum over k < m of gamma^k r_{t+k}
    discount: np.ndarray  # [B] gamma^m, 0 where the episode terminated (not where truncated)


def transition(batch: Transitions[np.ndarray], gamma: float) -> Transition:
    """Stacks the observations, both of an item at once, and sums the rewards of a batch."""
    index = np.concatenate([batch.observation_index, batch.next_index])
    return_, discount = n_step_return(batch.reward, batch.steps, batch.terminated, gamma)
    return Transition(stacked(batch.observation, index), batch.action, return_, discount)


def observe_batch(inputs: Inputs, batch: Transitions[np.ndarray]) -> None:
    """Updates the running statistics of the inputs, if there are any, by newest().

    Items are weighted by 1 / probability, so that the statistics are those of all that replay holds, however it samples.
    """
    if inputs.statistics:
        count, mean, variance = inputs.statistics
        observe(count, mean, variance, inputs.raw(newest(batch))[:, 0], 1 / batch.probability)


def newest(batch: Transitions[np.ndarray]) -> Columns:
    """The newest rows of observation_t {name: [B, 1, *shape]} as stored."""
    return stacked(batch.observation, batch.observation_index[:, -1:])


def stacked(windows: Columns, index: np.ndarray) -> Columns:
    """Windows {name: [B, W, *shape]} by index [N, stack] into each, N a multiple of B -> {name: [N, stack, *shape]}. Window i
    serves row i of the index, i + B, and so on."""
    items, width = next(iter(windows.values())).shape[:2]
    flat = index + _starts(items, width, len(index))
    return {name: window.reshape(items * width, *window.shape[2:]).take(flat, 0) for name, window in windows.items()}


@cache
def _starts(items: int, width: int, count: int) -> np.ndarray:
    """Where the windows of `count` rows of an index begin, [count, 1]."""
    return (np.arange(count) % items * width)[:, None]
