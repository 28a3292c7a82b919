"""The learner process as an update in numpy sees it: its configuration, its random numbers, its optimisers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np

from learner.config import LearnerConfig
from learner.engine.adam import FlatAdam
from learner.engine.module import Module
from transport.metrics import Metrics


class Process(Protocol):
    """The part of a process's Lifetime that is used here."""

    metrics: Metrics

    @property
    def stopping(self) -> bool: ...

    def beat(self) -> None: ...


class NoProcess:
    """Stands in for the process where an update runs outside of a run, in tests and benchmarks."""

    stopping = False

    def __init__(self) -> None:
        self.metrics = Metrics()

    def beat(self) -> None:
        pass


class EngineRuntime:
    """What LearnerRuntime of learner/updates/runtime.py is to an update by torch."""

    def __init__(self, config: LearnerConfig, seed: int = 0, process: Process | None = None, max_policy_lag: int = 1) -> None:
        self.config, self.max_policy_lag = config, max_policy_lag
        self.random = np.random.default_rng(seed)
        self.optimisers: dict[str, FlatAdam] = {}
        self.ending = False  # True once the process is asked to stop
        self._process = process or NoProcess()

    def optimiser(
        self,
        name: str,
        *modules: Module,
        learning_rate: float | None = None,
        rates: Mapping[Module, float] = MappingProxyType({}),
    ) -> FlatAdam:
        """Makes an optimiser for these modules, whose tensors move into its vectors. Checkpoints store it by its name.

        The steps of the first one count as updates. `learning_rate`: None means the configured one. `rates`: of single modules.
        Raises ValueError."""
        if name in self.optimisers or "/" in name:
            raise ValueError(f"optimiser {name!r}: each optimiser needs its own name, without a slash")
        rate = self.config.learning_rate if learning_rate is None else learning_rate
        self.optimisers[name] = FlatAdam(self, modules, rate, rates)
        return self.optimisers[name]

    def interrupted(self) -> bool:
        """True if the run is stopping. Call it between the steps of a long update."""
        self.ending = self._process.stopping
        return self.ending

    @property
    def first(self) -> FlatAdam:
        """The optimiser whose steps are counted as updates."""
        return next(iter(self.optimisers.values()))

    def stepped(self, optimiser: FlatAdam, items: int) -> None:
        """Called after each step of each optimiser."""
        if optimiser is self.first:
            self._process.metrics.count("updates")
            self._process.metrics.count("items", items)
        self._process.beat()

    def figures(self) -> dict[str, float]:
        """The first optimiser's learning rate, and the most steps that any optimiser has skipped, in all and in a row."""
        every = self.optimisers.values()
        return {
            "learning_rate": self.first.learning_rate,
            "skipped_updates": max(each.skipped for each in every),
            "skipped_in_a_row": max(each.skipped_in_a_row for each in every),
        }

    def state(self) -> dict[str, np.ndarray]:
        """The state of all optimisers, as `NAME/…`."""
        return {f"{name}/{key}": value for name, each in self.optimisers.items() for key, value in each.state().items()}

    def load_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Restores what state() returned. Raises ValueError or KeyError for the state of another update."""
        for name, each in self.optimisers.items():
            prefix = f"{name}/"
            each.load_state({key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)})

    def reset_skips(self) -> None:
        """Resets the counts of steps skipped in a row."""
        for each in self.optimisers.values():
            each.reset_skips()
