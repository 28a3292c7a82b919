"""The learner process as an update sees it: its device, its group, its optimisers, and whether it is stopping."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learner.config import LearnerConfig
from learner.devices.capabilities import capabilities, clear_cache, computed_in, fork_random, random_state, set_random_state
from learner.networks import stacks
from learner.parallel.base import ALONE, Group
from learner.updates.base import ModuleT, Tensors
from learner.updates.optimiser import AdamOptimiser
from learner.updates.process import MeasuredLife, ProcessRuntime
from transport.experience import ExperienceSpec


class LearnerRuntime(ProcessRuntime[AdamOptimiser]):
    """Implements Runtime and Backend of learner/updates/base.py."""

    library = "torch"

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
        super().__init__(config, group, process, max_policy_lag)
        self.device, self.place = device, str(device)
        self._compiled = compiled
        self._engine: dict[str, np.ndarray] = {}  # the state of the engine's generator, with which that goes on

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
        self.optimisers[name] = AdamOptimiser(self, modules, self._rate(name, learning_rate), rates, recordable)
        return self.optimisers[name]

    @property
    def precision(self) -> str:
        return computed_in(self.first.precision, self.device)

    @property
    def parameters(self) -> int:
        return sum(value.numel() for each in self.optimisers.values() for value in each.parameters)

    def figures(self) -> Tensors:
        """The first optimiser's learning rate, and the most steps that any optimiser has skipped, in all and in a row."""
        learning_rate = torch.full((), self.first.learning_rate, device=self.device)
        return {
            "learning_rate": learning_rate,
            "skipped_updates": _greatest([each.skipped for each in self.optimisers.values()]),
            "skipped_in_a_row": _greatest([each.skipped_in_a_row for each in self.optimisers.values()]),
        }

    def read(self, metrics: Mapping[str, Tensor]) -> dict[str, float]:
        """Copies all metrics from the device at once, so that the host waits for it only once."""
        return dict(zip(metrics, torch.stack([value.float() for value in metrics.values()]).tolist(), strict=True))

    def choose_stacking(self, modules: Iterable[nn.Module], spec: ExperienceSpec) -> str:
        return stacks.choose(modules, spec, self.config.batch_size // self.config.accumulation, self.device, self.first.autocast)

    def clear_cache(self) -> None:
        clear_cache(self.device)

    def load_state(self, tensors: Mapping[str, Tensor | np.ndarray]) -> None:
        super().load_state({name: _tensor(value) for name, value in tensors.items()})

    def random_state(self) -> dict[str, Any]:
        states: dict[str, Any] = {"cpu": torch.get_rng_state()}
        if (state := random_state(self.device)) is not None:
            states[self.device.type] = state
        return states | self._engine

    def set_random_state(self, states: Mapping[str, np.ndarray]) -> None:
        self._engine = {name: np.array(value) for name, value in states.items() if name == "engine"}
        if "cpu" in states or not self._engine:  # otherwise the engine has learned until now
            torch.set_rng_state(_tensor(states["cpu"]))
        kind = self.device.type
        if capabilities(self.device).random_state and kind in states:  # otherwise its generator keeps its state
            set_random_state(self.device, _tensor(states[kind]))

    def random_kept(self) -> AbstractContextManager[None]:
        return fork_random(self.device)


def _tensor(value: Tensor | np.ndarray) -> Tensor:
    return value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


def _greatest(values: list[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(values).amax()
