"""The learner process as an update in numpy sees it: its configuration, its random numbers, its optimisers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np

from learner.config import LearnerConfig
from learner.engine.adam import FlatAdam
from learner.engine.module import Module
from learner.parallel.base import ALONE, Group
from learner.updates.process import MeasuredLife, ProcessRuntime
from transport.experience import ExperienceSpec

GENERATOR = struct.Struct("<16s16sII")  # state and increment of PCG64, and the half of a draw that it has left
OWN = "engine"  # name of its generator in checkpoints


class EngineRuntime(ProcessRuntime[FlatAdam]):
    """What LearnerRuntime of learner/updates/runtime.py is to an update by torch; implements Backend of its base.py."""

    library, place, precision = "numpy", "cpu", "float32"

    def __init__(
        self,
        config: LearnerConfig,
        seed: int = 0,
        process: MeasuredLife | None = None,
        max_policy_lag: int = 1,
        group: Group = ALONE,
    ) -> None:
        super().__init__(config, group, process, max_policy_lag)
        self.random = np.random.default_rng(seed)
        self._others: dict[str, np.ndarray] = {}  # states of torch's generators, with which torch goes on

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
        self.optimisers[name] = FlatAdam(self, modules, self._rate(name, learning_rate), rates)
        return self.optimisers[name]

    @property
    def parameters(self) -> int:
        return sum(each.values.size for each in self.optimisers.values())

    def figures(self) -> dict[str, float]:
        """The first optimiser's learning rate, and the most steps that any optimiser has skipped, in all and in a row."""
        every = self.optimisers.values()
        return {
            "learning_rate": self.first.learning_rate,
            "skipped_updates": max(each.skipped for each in every),
            "skipped_in_a_row": max(each.skipped_in_a_row for each in every),
        }

    def read(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        return {name: float(value) for name, value in metrics.items()}

    def choose_stacking(self, modules: Iterable[Module], spec: ExperienceSpec) -> str:
        return ""

    def clear_cache(self) -> None:
        pass

    def random_state(self) -> dict[str, np.ndarray]:
        state = self.random.bit_generator.state
        numbers = [state["state"][name].to_bytes(16, "little") for name in ("state", "inc")]
        packed = GENERATOR.pack(*numbers, state["has_uint32"], state["uinteger"])
        return {**self._others, OWN: np.frombuffer(packed, np.uint8)}

    def set_random_state(self, states: Mapping[str, np.ndarray]) -> None:
        self._others = {name: np.array(value) for name, value in states.items() if name != OWN}
        if OWN not in states:  # torch has learned until now
            return
        try:
            state, increment, has_half, half = GENERATOR.unpack(states[OWN].tobytes())
        except struct.error as error:
            raise ValueError(f"random/{OWN}: {error}") from error
        numbers = {name: int.from_bytes(number, "little") for name, number in (("state", state), ("inc", increment))}
        kept = {"state": numbers, "has_uint32": has_half, "uinteger": half}
        self.random.bit_generator.state = {**self.random.bit_generator.state, **kept}

    @contextmanager
    def random_kept(self) -> Iterator[None]:
        before = self.random.bit_generator.state
        yield
        self.random.bit_generator.state = before
