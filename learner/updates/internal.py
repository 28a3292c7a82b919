"""What the parts of an optimiser know of each other."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from learner.config import LearnerConfig
from learner.parallel.group import Group
from learner.updates.base import LossFunction, Outcome


class Host(Protocol):
    """What an optimiser needs of the process around it."""

    device: torch.device
    config: LearnerConfig

    @property
    def group(self) -> Group: ...

    @property
    def compiled(self) -> Path:
        """Where the compiler keeps its files."""

    def stepped(self, optimiser: Any, items: int) -> None:
        """After each step."""

    def waiting(self) -> bool:
        """Says that the process is not stuck; False when it is to stop."""

    def gauge(self, name: str, value: float) -> None: ...


class Stepper(Protocol):
    """An optimiser, to what compiles its losses and records its steps."""

    device: torch.device
    precision: str
    parameters: list[nn.Parameter]
    buffers: list[Tensor]  # of the modules: a loss may change these
    parts: int  # micro-batches of a batch

    def take(self, loss: LossFunction, inputs: tuple[Any, ...]) -> Outcome:
        """A step as it stands; inputs: (items, *shared)."""

    def changed_tensors(self) -> list[Tensor]:
        """Whatever take() changes."""

    def forget_gradient(self) -> None: ...

    def autocast(self) -> AbstractContextManager[object]: ...
