"""What learning is made of: the batch, the loss, one optimiser step, and what an algorithm may ask of the process around it.

An algorithm's `update(batch)` is plain code that calls `optimiser.step(loss, items)`. How a step is computed (micro-batches,
mixed precision, several processes, a compiler, graphs) is the optimiser's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from learner.parallel.group import Group
from learner.updates.dense import KnownGradients

Tensors = dict[str, Tensor]
ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Transitions(NamedTuple):
    """B sampled items on the device, as replay gathered them: row windows and what to make of them.

    A window has W = stack + n_step rows, t-(stack-1) … t+n. m = min(n, steps to the episode's boundary).
    """

    observation: Tensors  # {name: [B, W, *shape]} as stored
    observation_index: Tensor  # [B, stack] int64 rows of the window: the stack of observation_t, oldest first
    next_index: Tensor  # [B, stack] int64 rows of the window: the stack of observation_{t+m}
    action: Tensor  # [B] int64, or [B, A] float32
    reward: Tensor  # [B, n] float32: r_t … r_{t+n-1}; entries from m on mean nothing and may be NaN
    steps: Tensor  # [B] int64: m, at least 1
    terminated: Tensor  # [B] bool: the episode terminated within the m steps
    probability: Tensor  # [B] float32: the probability with which the item was drawn
    extras: Tensors  # {name: [B, …]}: the spec's further columns, as stored


class Chunks(NamedTuple):
    """B whole chunks on the device: every column as it rests, [B, rows, …] with rows = spec.rows(L).

    Row history + i holds item i; the row after the last item, history + length, is only there to bootstrap from. A row with
    valid False has no action: it holds the last observation of a truncated episode. Rows past that one mean nothing.
    """

    observation: Tensors  # {name: [B, rows, *shape]} as stored
    action: Tensor  # [B, rows] int64, or [B, rows, A] float32
    reward: Tensor  # [B, rows] float32
    terminated: Tensor  # [B, rows] bool
    truncated: Tensor  # [B, rows] bool
    valid: Tensor  # [B, rows] bool
    episode_step: Tensor  # [B, rows] int64
    policy_version: Tensor  # [B, rows] int32
    length: Tensor  # [B] int64: items of each chunk, at most L
    extras: Tensors  # {name: [B, rows, …]}: the spec's further columns, as stored


Batch = Transitions | Chunks


class Loss(NamedTuple):
    """What a loss function says of its items."""

    value: Tensor | KnownGradients  # 0-d: a mean over axis 0 of the items, or it would change with the micro-batches
    metrics: Tensors  # 0-d, detached; "ignored" is the share of items that are not finite: a rollback looks at it
    priority: Tensor | None = None  # [b], detached


class Outcome(NamedTuple):
    """What one step, or a whole update, has to tell. The tensors last until the next step: copy what is to be kept."""

    metrics: Tensors  # 0-d, on the device
    priorities: Tensor | None = None  # [B], of the batch's items


LossFunction = Callable[..., Loss]


class Optimiser(Protocol):
    """Takes steps on the parameters of the modules that it was made for."""

    def step(self, loss: LossFunction, items: Any, *shared: Any) -> Outcome:
        """One step by `loss(items, *shared)`.

        `items` is a tensor, or a NamedTuple or dict of such; it may be split along axis 0, and `loss` is then called with
        its parts. `shared` never is. The outcome's metrics are those of the loss and `gradient_norm`, before clipping. A step
        whose gradient is not finite is skipped and counted. Raises MemoryError when a single item does not fit.
        """

    def autocast(self) -> AbstractContextManager[object]:
        """Mixed precision as within a step, for what is computed outside of it."""

    def scale_learning_rate(self, share: float) -> None:
        """From the next step on, steps are of this share of the configured learning rate."""


class Runtime(Protocol):
    """What an update may ask of the learner process that it runs in."""

    device: torch.device
    group: Group  # the learner's processes; one process is a group, too
    config: Any  # LearnerConfig
    max_policy_lag: int  # of rollouts, in versions

    def to_device(self, module: ModuleT) -> ModuleT:
        """The module, on the device in the memory format that is best there."""

    def optimiser(
        self, name: str, *modules: nn.Module, learning_rate: float | None = None, rates: Mapping[nn.Module, float] = ...
    ) -> Optimiser:
        """An optimiser of these modules, known by its name to checkpoints. The first one made counts the updates.

        `learning_rate`: None is the configured one. `rates`: of modules that have one of their own. Raises ValueError.
        """

    def interrupted(self) -> bool:
        """Whether the process is to stop. Ask it between the steps of a long update, in every process of the group alike."""


class Update(Protocol):
    """What an algorithm learns with. Made as `Update(algorithm, spec, runtime)` by Algorithm.update()."""

    modules: dict[str, nn.Module]  # everything with weights; "policy" travels to the actors
    counters: dict[str, float]  # saved with the modules, restored in place

    def update(self, batch: Any) -> Outcome:
        """Learns from one batch: Transitions or Chunks, as the spec's unit says. Does no I/O; draws from torch's global
        generators."""
