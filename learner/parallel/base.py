"""A group of learner processes that train one policy, and the collectives between them; here a group of one.

All processes have the same weights. Each differentiates its own batch; after the last micro-batch the gradients are averaged as
one flat buffer, and all processes take the same step. docs/explanation/decisions.md says why this is not torch's
DistributedDataParallel.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from transport.text import say

if TYPE_CHECKING:
    from torch import Tensor, nn

STORE_VARIABLE = "HEADRACE_RANKS_FILE"  # path of the file through which the processes find each other
Moments = tuple["int | Tensor", "Tensor", "Tensor"]  # count, variance, mean


class Life(Protocol):
    """The part of a process's Lifetime that a group uses."""

    @property
    def stopping(self) -> bool:
        """True once the process has been asked to stop."""

    def beat(self) -> None:
        """Sends a heartbeat."""


class Group:
    """A learner of a single process: every collective returns its argument unchanged, bit for bit."""

    rank, size = 0, 1

    def any(self, flag: bool) -> bool:
        """True if the flag is set in any process. Waits for all processes, and sends heartbeats meanwhile."""
        return flag

    def average(self, parameters: Sequence[nn.Parameter], items: int) -> None:
        """Replaces each gradient, a mean over the `items` of this process, by the mean over the items of all processes."""

    def greatest(self, value: Tensor) -> Tensor:
        """The maximum over all processes: 0-d, on the device."""
        return value

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all processes: 0-d, on the device."""
        return value

    def least(self, number: int) -> int:
        """The minimum over all processes."""
        return number

    def total(self, number: int) -> int:
        """The sum over all processes."""
        return number

    def var_mean(self, values: Tensor, weight: Tensor | None = None) -> Moments:
        """Count, population variance […] and mean […] of the values [N, …] of all processes, each weighted by `weight` [N]."""
        if not len(values):
            return 0, values.sum(0), values.sum(0)
        if weight is None:
            import torch  # not at the top: a learner by the engine asks for none of these

            return (len(values), *torch.var_mean(values, 0, correction=0))
        share = beside(weight / weight.sum(), values)
        mean = (share * values).sum(0)
        return len(values), (share * (values - mean).square()).sum(0), mean

    def std_mean(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Population standard deviation and mean, 0-d, of the values [N] of all processes."""
        import torch

        return torch.std_mean(values, correction=0)

    def equalise(self, tensors: Iterable[Tensor]) -> None:
        """Copies the tensors of rank 0 into those of all other processes."""

    def draw_apart(self) -> None:
        """Gives each process but the first random numbers of its own, derived from those that all have."""

    def say(self, line: str) -> None:
        """Logs a line that is the same in all processes, once."""
        say(line)

    def warn(self, line: str) -> None:
        """Logs a line about this process alone, with its name where there are several."""
        say(line)

    def close(self) -> None:
        """Leaves the group: no collective comes after it, and the other processes may end."""


ALONE = Group()


class GroupBroken(RuntimeError):
    """Another process of the group has ended, so this one cannot continue."""


def process_name(rank: int) -> str:
    """The process name of a rank; rank 0 is `learner` to all other processes."""
    return f"learner-{rank}" if rank else "learner"


def rank_and_size() -> tuple[int, int]:
    """(rank, size) of this process; (0, 1) where it is the only one."""
    if STORE_VARIABLE not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def beside(weight: Tensor, values: Tensor) -> Tensor:
    """Weights [N] in a shape that multiplies values [N, …]."""
    return weight.reshape(-1, *[1] * (values.dim() - 1))
