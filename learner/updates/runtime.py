"""The learner process as an update sees it: its device, its group, its optimisers, and whether it is stopping."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor, nn

from learner.config import LearnerConfig
from learner.devices.capabilities import capabilities
from learner.parallel.base import ALONE, Group, Life
from learner.updates.base import ModuleT, Tensors
from learner.updates.optimiser import AdamOptimiser
from transport.metrics import Metrics


class MeasuredLife(Life, Protocol):
    """The part of a process's Lifetime that is used here."""

    metrics: Metrics


class NoProcess:
    """Stands in for the process where an update runs outside of a run, in tests and benchmarks."""

    stopping = False

    def __init__(self) -> None:
        self.metrics = Metrics()

    def beat(self) -> None:
        pass


class LearnerRuntime:
    """Implements Runtime of learner/updates/base.py."""

    def __init__(
        self,
        config: LearnerConfig,
        device: torch.device,
        group: Group = ALONE,
        process: MeasuredLife | None = None,
        max_policy_lag: int = 1,
        compiled: Path | None = None,
    ) -> None:
        """`compiled`: the folder of torch.compile's files, a temporary one where none is given; each further process of the group
        has its own beside it."""
        self.config, self.device, self.group, self.max_policy_lag = config, device, group, max_policy_lag
        self.optimisers: dict[str, AdamOptimiser] = {}
        self.ending = False  # True once any process of the group is asked to stop: all stop after the same step
        self._process: MeasuredLife = process or NoProcess()
        self._compiled = compiled

    @property
    def compiled(self) -> Path:
        if self._compiled is None:
            self._compiled = Path(tempfile.mkdtemp(prefix="headrace-compiled-"))
        rank = self.group.rank
        return self._compiled.with_name(f"{self._compiled.name}-{rank}") if rank else self._compiled

    def to_device(self, module: ModuleT) -> ModuleT:
        memory_format = torch.channels_last if capabilities(self.device).channels_last else torch.contiguous_format
        moved: ModuleT = module.to(self.device, memory_format=memory_format)  # type: ignore[call-overload]
        return moved

    def optimiser(
        self,
        name: str,
        *modules: nn.Module,
        learning_rate: float | None = None,
        rates: Mapping[nn.Module, float] = MappingProxyType({}),
        recordable: bool = False,
    ) -> AdamOptimiser:
        """Raises ValueError, also DeviceError."""
        if name in self.optimisers or "/" in name:
            raise ValueError(f"optimiser {name!r}: each optimiser needs its own name, without a slash")
        rate = self.config.learning_rate if learning_rate is None else learning_rate
        self.optimisers[name] = AdamOptimiser(self, modules, rate, rates, recordable)
        return self.optimisers[name]

    def interrupted(self) -> bool:
        self.ending = self.group.any(self._process.stopping)
        return self.ending

    @property
    def first(self) -> AdamOptimiser:
        """The optimiser whose steps are counted as updates."""
        return next(iter(self.optimisers.values()))

    def stepped(self, optimiser: AdamOptimiser, items: int) -> None:
        """Called after each step of each optimiser."""
        if optimiser is self.first:
            self._process.metrics.count("updates")
            self._process.metrics.count("items", items * self.group.size)  # the other processes have about as many
        self._process.beat()

    def waiting(self) -> bool:
        """Sends a heartbeat; False when the process is asked to stop."""
        self._process.beat()
        return not self._process.stopping

    def gauge(self, name: str, value: float) -> None:
        self._process.metrics.gauge(name, value)

    def figures(self) -> Tensors:
        """The first optimiser's learning rate, and the most steps that any optimiser has skipped, in all and in a row."""
        learning_rate = torch.full((), self.first.learning_rate, device=self.device)
        return {
            "learning_rate": learning_rate,
            "skipped_updates": _greatest([each.skipped for each in self.optimisers.values()]),
            "skipped_in_a_row": _greatest([each.skipped_in_a_row for each in self.optimisers.values()]),
        }

    def state(self) -> Tensors:
        """The state of all optimisers, as `NAME/…`."""
        return {f"{name}/{key}": value for name, each in self.optimisers.items() for key, value in each.state().items()}

    def load_state(self, tensors: Tensors) -> None:
        """Restores what state() returned. Raises ValueError or KeyError for the state of another update."""
        for name, each in self.optimisers.items():
            prefix = f"{name}/"
            each.load_state({key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)})

    def reset_skips(self) -> None:
        """Resets the counts of steps skipped in a row."""
        for each in self.optimisers.values():
            each.reset_skips()


def _greatest(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(values).amax()
