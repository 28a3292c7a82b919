"""What an algorithm is to everything else, and how its name is found. No torch here, nor in an algorithm's own module.

An algorithm is a class, `find_algorithm("dqn" | "package.module:Name")`, made with its options. The command line, the
supervisor, actors and the learner ask the class or its instance for what they need to know, never which one it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec import Struct

from learner.algorithms.hindsight import has_goals, hindsight_columns
from learner.inference.base import Inference
from transport.experience import Column, Columns, ExperienceSpec, Unit
from transport.names import FIXED as FIXED
from transport.names import Named, UnknownName, find

if TYPE_CHECKING:
    from torch import nn

    from learner.updates.base import Runtime, Update

Tree = dict[str, Any]
# As in training; drawn from the policy; what the policy thinks best; without a policy.
Mode = Literal["explore", "stochastic", "greedy", "random"]
Limit = Literal["learner", "actors"]
ActionKind = Literal["categorical", "masked", "continuous"]

ALGORITHMS = {
    "dqn": "learner.algorithms.dqn.algorithm:Dqn",
    "ppo": "learner.algorithms.ppo.algorithm:Ppo",
    "sac": "learner.algorithms.sac.algorithm:Sac",
}
DEFAULT = "dqn"
PARTS = (
    *("Config", "actions", "begins_random", "exact_acting", "figures", "advice"),
    *("defaults", "needs", "policy", "acting", "update"),
)  # of every algorithm


class Needs(Struct, frozen=True, forbid_unknown_fields=True):
    """What an algorithm wants of experience; the environment's spec and this together are the run's."""

    unit: Unit = "transitions"
    n_step: int = 1
    burn_in: int = 0
    goals: int = 0  # hindsight goals per row; none where the environment has none
    columns: tuple[Column, ...] = ()


class ActionBatch(NamedTuple):
    """What K environments are to do."""

    action: np.ndarray  # [K] int64, or [K, A] float32 unbounded
    columns: Columns  # {name: [K, …]} of the rows; those that the spec does not have are kept for annotate() only
    state: Columns  # {name: [K, *shape]} for the next act(); {} without memory


class ActingPolicy(Protocol):
    """Chooses actions. numpy."""

    @property
    def state(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of one environment's state, as the inference has it; the names are columns'."""

    def assign(self, seed: int, offset: int, count: int, total: int) -> None:
        """Begins random choices anew; environments offset … offset + count - 1 of `total` are played. Again at each rescale."""

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionBatch:
        """On observation[name] [K, stack, *shape] as stored, and state[name] [K, *shape], zeros at the start of an episode."""

    def annotate(self, columns: Columns) -> Columns:
        """The columns [M, rows, …] of M chunks of one length that are about to leave, with those that were not known earlier."""


class Algorithm(Protocol):
    """An algorithm with its options."""

    Config: ClassVar[type[Struct]]
    actions: ClassVar[frozenset[ActionKind]]
    begins_random: ClassVar[bool]  # actors act at random until the first weights that have learned something
    exact_acting: ClassVar[bool]  # --actors.precision auto means float32
    figures: ClassVar[Mapping[str, str]]  # metric -> format, in the learner's line; the format may name other metrics
    advice: ClassVar[Mapping[Limit, str]]  # what to change when these limit the run
    config: Any

    def __init__(self, config: Any) -> None: ...

    @classmethod
    def defaults(cls, env: ExperienceSpec | None, accelerated: bool) -> Tree:
        """Settings of other sections, below every preset; `env` is None before the environment has been tried."""

    def needs(self, env: ExperienceSpec) -> Needs:
        """Raises ValueError, in one line, as policy and update do."""

    def policy(self, spec: ExperienceSpec) -> nn.Module:
        """The network whose weights travel, in float32 on the CPU. Imports torch."""

    def acting(self, spec: ExperienceSpec, inference: Inference) -> ActingPolicy:
        """What chooses actions by the network's answers. Imports no torch."""

    def update(self, spec: ExperienceSpec, runtime: Runtime) -> Update:
        """What learns. Imports torch."""


def find_algorithm(name: str) -> type[Algorithm]:
    """The class of that name, built in or `package.module:Name`. Raises UnknownName."""
    found = find(name, ALGORITHMS, "algorithm")
    lacking = [part for part in PARTS if not hasattr(found, part)]
    if lacking:
        raise UnknownName(f"{name} is no algorithm: it has no {', '.join(lacking)} (see learner/algorithms/base.py)")
    return found  # type: ignore[no-any-return]


def read_algorithm(section: Mapping[str, Any]) -> Named:
    """The [algorithm] section of a configuration: its `name`, and its options checked. Raises UnknownName,
    msgspec.ValidationError."""
    options = dict(section)
    name = str(options.pop("name", DEFAULT))
    return Named(name, msgspec.convert(options, find_algorithm(name).Config))


def make_algorithm(choice: Named) -> Algorithm:
    """The algorithm that was chosen, with its options. Raises UnknownName."""
    return find_algorithm(choice.name)(choice.options)


def join(env: ExperienceSpec, needs: Needs) -> ExperienceSpec:
    """The run's spec: what the environment gives and what the algorithm wants of it. Raises SpecError."""
    goals = needs.goals if has_goals(env) else 0
    hindsight = hindsight_columns(env, goals) if goals else ()
    return msgspec.structs.replace(
        env,
        unit=needs.unit,
        n_step=needs.n_step,
        burn_in=needs.burn_in,
        goals=goals,
        extras=(*env.extras, *needs.columns, *hindsight),
    )
