"""The account that a learner process keeps of its optimisers and of its end, whichever library computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from learner.config import LearnerConfig
from learner.parallel.base import Group, Life
from learner.updates.schedule import Collected, share
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


class Stateful(Protocol):
    """An optimiser, as checkpoints and rollbacks see it. Its tensors are torch's, or arrays."""

    def state(self) -> dict[str, Any]: ...

    def load_state(self, tensors: Any) -> None: ...

    def reset_skips(self) -> None: ...

    def follow_schedule(self, share: float) -> None: ...


OptimiserT = TypeVar("OptimiserT", bound=Stateful)


class ProcessRuntime(Generic[OptimiserT]):
    """What LearnerRuntime and EngineRuntime share."""

    def __init__(self, config: LearnerConfig, group: Group, process: MeasuredLife | None, max_policy_lag: int) -> None:
        self.config, self.group, self.max_policy_lag = config, group, max_policy_lag
        self.optimisers: dict[str, OptimiserT] = {}
        self.collected = Collected()
        self.ending = False  # True once any process of the group is asked to stop: all stop after the same step
        self._process: MeasuredLife = process or NoProcess()

    def _rate(self, name: str, learning_rate: float | None) -> float:
        """The learning rate of a new optimiser. Raises ValueError."""
        if name in self.optimisers or "/" in name:
            raise ValueError(f"optimiser {name!r}: each optimiser needs its own name, without a slash")
        return self.config.learning_rate if learning_rate is None else learning_rate

    def interrupted(self) -> bool:
        """True if the run is stopping. Call it between the steps of a long update, equally often in every process."""
        self.ending = self.group.any(self._process.stopping)
        return self.ending

    @property
    def first(self) -> OptimiserT:
        """The optimiser whose steps are counted as updates."""
        return next(iter(self.optimisers.values()))

    def stepped(self, optimiser: OptimiserT, items: int) -> None:
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

    def state(self) -> dict[str, Any]:
        """The state of all optimisers, as `NAME/…`."""
        return {f"{name}/{key}": value for name, each in self.optimisers.items() for key, value in each.state().items()}

    def load_state(self, tensors: Mapping[str, Any]) -> None:
        """Restores what state() returned, by either library. Raises ValueError or KeyError for the state of another update."""
        for name, each in self.optimisers.items():
            prefix = f"{name}/"
            each.load_state({key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)})

    def follow_schedule(self, counts: Sequence[int]) -> None:
        """Gives all optimisers the learning rate after these environment steps, as of Collected.follow; in a group that of rank
        0."""
        self.collected.follow(counts)
        if self.config.learning_rate_schedule == "constant":
            return
        steps = self.group.total(0 if self.group.rank else self.collected.steps)
        for each in self.optimisers.values():
            each.follow_schedule(share(self.config, steps))

    def reset_skips(self) -> None:
        """Resets the counts of steps skipped in a row."""
        for each in self.optimisers.values():
            each.reset_skips()
