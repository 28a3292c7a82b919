"""The batch that an algorithm learns from, and what the optimiser and the learner's loop ask of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from learner.updates.dense import Known


class Runtime(Protocol):
    """What an update is made for."""

    device: torch.device


class Batch(NamedTuple):
    """B sampled items on the device, as replay gathered them: row windows and what to make of them.

    A window has W = stack + n_step rows, t-(stack-1) … t+n. m = min(n, steps to the episode's boundary).
    """

    observation: dict[str, Tensor]  # {name: [B, W, *shape]} as stored
    observation_index: Tensor  # [B, stack] int64 rows of the window: the stack of observation_t, oldest first
    next_index: Tensor  # [B, stack] int64 rows of the window: the stack of observation_{t+m}
    action: Tensor  # [B] int64, or [B, A] float32
    reward: Tensor  # [B, n] float32: r_t … r_{t+n-1}; entries from m on mean nothing and may be NaN
    steps: Tensor  # [B] int64: m, at least 1
    terminated: Tensor  # [B] bool: the episode terminated within the m steps
    probability: Tensor  # [B] float: the probability with which the item was drawn
    extras: dict[str, Tensor] = {}  # {name: [B, …]}: the spec's further columns, as stored

    def part(self, start: int, stop: int) -> Batch:
        """Items start … stop-1: views, no copies."""
        return self.each(lambda rows: rows[start:stop])

    def each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with each of its tensors changed."""
        changed: list[Any] = [
            {name: change(rows) for name, rows in value.items()} if isinstance(value, dict) else change(value) for value in self
        ]
        return Batch(*changed)

    def tensors(self) -> list[Tensor]:
        return [rows for value in self for rows in (value.values() if isinstance(value, dict) else (value,))]


class Divisible(Protocol):
    """What can be learned from part by part."""

    def part(self, start: int, stop: int) -> Self:
        """Items start … stop-1."""


BatchT = TypeVar("BatchT", bound=Divisible)
TakenT = TypeVar("TakenT", bound=Divisible, contravariant=True)


class Algorithm(Protocol[TakenT]):
    """What the optimiser and the learner's loop ask of an algorithm. No method waits for the device or does I/O."""

    updates: int  # done so far, those before a resume included

    def parameters(self) -> list[nn.Parameter]:
        """What is to be optimised."""

    def rates(self) -> dict[nn.Parameter, float]:
        """The parameters that have a learning rate of their own, the last of parameters(); mostly none."""

    def importance(self, batch: TakenT) -> Tensor:
        """The weight [B] of each item's loss, beside those of the others: the optimiser divides by the greatest."""

    def loss(self, micro_batch: TakenT, weight: Tensor) -> tuple[Tensor | Known, Tensor, dict[str, Tensor]]:
        """The mean weighted loss (0-d), new priorities [b], and metrics (0-d); all but the loss are detached."""

    def after_update(self) -> None:
        """Called once after every update."""

    def policy(self) -> nn.Module:
        """The network whose weights actors run; the same object all along."""

    def counters(self) -> dict[str, float]:
        """What a resume needs beside modules()."""

    def load_counters(self, counters: dict[str, float]) -> None:
        """Takes up what counters() gave. Raises KeyError if something is missing."""

    def modules(self) -> dict[str, nn.Module]:
        """Everything with weights by name, that of policy() as "policy": what a checkpoint must hold."""
