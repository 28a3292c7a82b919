"""Protocols within this folder: the process around an optimiser, and the optimiser as compile and graphs see it."""

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
    """The learner process around an optimiser."""

    device: torch.device
    config: LearnerConfig

    @property
    def group(self) -> Group: ...

    @property
    def compiled(self) -> Path:
        """The folder of torch.compile's files."""

    def stepped(self, optimiser: Any, items: int) -> None:
        """Called after each step."""

    def waiting(self) -> bool:
        """Sends a heartbeat; False when the process is asked to stop."""

    def gauge(self, name: str, value: float) -> None: ...


class Stepper(Protocol):
    """An optimiser whose losses can be compiled and whose steps can be recorded."""

    device: torch.device
    precision: str
    parameters: list[nn.Parameter]
    buffers: list[Tensor]  # of the modules: a loss may change these
    parts: int  # micro-batches of a batch

    def take(self, loss: LossFunction, inputs: tuple[Any, ...]) -> Outcome:
        """Takes a step eagerly; inputs: (items, *shared)."""

    def changed_tensors(self) -> list[Tensor]:
        """All tensors that take() changes."""

    def forget_gradient(self) -> None: ...

    def autocast(self) -> AbstractContextManager[object]: ...
