"""The protocol of algorithms, and how one is found by its name. No torch, here and in an algorithm's own module.

An algorithm is a class, `find_algorithm("dqn" | "package.module:Name")`, instantiated with its options. The command line, the
supervisor, actors and the learner ask the class or the instance for what they need, and never which algorithm it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec import Struct

from learner.algorithms.columns import has_goals, hindsight_columns
from learner.description import PolicyDescription
from learner.inference.base import Inference
from transport.experience import Categorical, Column, Columns, ExperienceSpec, MultiCategorical, Unit
from transport.files.renamed import without_removed
from transport.names import FIXED as FIXED
from transport.names import Named, UnknownName, find

if TYPE_CHECKING:
    from torch import nn

    from learner.description import PolicyDescription
    from learner.engine.runtime import EngineRuntime
    from learner.updates.base import Runtime, Update

Tree = dict[str, Any]
# With the exploration of training; sampled from the policy; the policy's best action; uniformly random without the policy.
Mode = Literal["explore", "stochastic", "greedy", "random"]
Limit = Literal["learner", "actors"]
# masked: discrete, and the environment says at each step which actions are allowed (learner/algorithms/arithmetic/masks.py).
# multicategorical: one choice in each of several dimensions.
ActionKind = Literal["categorical", "masked", "multicategorical", "continuous"]

ALGORITHMS = {
    "dqn": "learner.algorithms.dqn.algorithm:Dqn",
    "ppo": "learner.algorithms.ppo.algorithm:Ppo",
    "pqn": "learner.algorithms.pqn.algorithm:Pqn",
    "r2d2": "learner.algorithms.r2d2.algorithm:R2d2",
    "reppo": "learner.algorithms.reppo.algorithm:Reppo",
    "sac": "learner.algorithms.sac.algorithm:Sac",
}
DEFAULT = "dqn"
# The algorithm where the user names none. From most images that were tried, ppo learned more in the same time than dqn and pqn.
# With goals, rewards are sparse, and sac learns from each of them by hindsight.
SUITED: dict[ActionKind, str] = {"categorical": "dqn", "masked": "dqn", "multicategorical": "ppo", "continuous": "ppo"}
SUITED_IMAGES: dict[ActionKind, str] = dict.fromkeys(SUITED, "ppo")
SUITED_GOALS: dict[ActionKind, str] = SUITED | {"continuous": "sac"}
RELATED = dict.fromkeys(
    ("c51", "rainbow", "qrdqn", "apex", "ape-x", "ddqn"), "dqn"
)  # other algorithms -> the most similar built-in one
RELATED |= dict.fromkeys(("a2c", "a3c", "trpo", "impala", "appo", "vtrace"), "ppo")
RELATED |= dict.fromkeys(("purejaxql", "q-lambda", "q(lambda)"), "pqn")
RELATED |= dict.fromkeys(("td3", "ddpg", "tqc", "crossq"), "sac")
OWN = ("Config", "actions", "policy", "acting", "update")  # of every algorithm
DECLARED = ("Config", "actions", "begins_random", "exact_acting", "imitates", "offline", "figures", "advice")
PARTS = (*DECLARED, "defaults", "needs", "describe", "array_update", *OWN[2:])


class Needs(Struct, frozen=True, forbid_unknown_fields=True):
    """An algorithm's wishes for experience; joined with the environment's spec they are the run's spec."""

    unit: Unit = "transitions"
    n_step: int = 1
    burn_in: int = 0  # rows before the items of a chunk, which bring the state of a memory up to date
    goals: int = 0  # hindsight goals per row; none where the environment has none
    columns: tuple[Column, ...] = ()


class ActionBatch(NamedTuple):
    """The actions of K environments."""

    action: np.ndarray  # [K] int64, [K, D] int64 of D choices, or [K, A] float32 unbounded
    columns: Columns  # {name: [K, …]} further columns of the rows; those that the spec lacks are kept only for annotate()
    state: Columns  # {name: [K, *shape]} recurrent state for the next act(); {} without memory


class Explanation(NamedTuple):
    """A figure for each action of K environments, such as its value, by which the policy chooses; shown to people."""

    name: str  # of the figures, such as action value
    figures: np.ndarray  # [K, n]; not finite where an action is forbidden
    bounds: tuple[float, float] | None = None  # between which figures lie; None: anywhere


class ActingPolicy(Protocol):
    """Chooses actions, in numpy.

    `explain`, for discrete actions, is optional, and called by `explain()`.
    """

    @property
    def state(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of one environment's recurrent state, as the inference has it; the names are column names."""

    def assign(self, seed: int, offset: int, count: int, total: int) -> None:
        """Seeds the random numbers, and says that the environments are offset … offset + count - 1 of `total`. Called at the
        start and after each rescale."""

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionBatch:
        """observation[name]: [K, stack, *shape] as stored; state[name]: [K, *shape], zeros at the start of an episode."""

    def annotate(self, columns: Columns) -> Columns:
        """Adds columns that act() could not know yet to `columns` [M, rows, …] of M chunks that are about to be sent."""


def explain(policy: ActingPolicy, observation: Columns, state: Columns) -> Explanation | None:
    """policy.explain(observation, state), with the arguments of act(); None if the policy has no such method, or returns None."""
    method = getattr(policy, "explain", None)
    return None if method is None else method(observation, state)  # type: ignore[no-any-return]


class Algorithm:
    """An algorithm with its options. A subclass has at least `Config`, `actions`, policy(), acting() and update()."""

    Config: ClassVar[type[Struct]]
    actions: ClassVar[frozenset[ActionKind]]  # an environment with another kind of action is refused before launch
    # Actors act at random until the first trained weights: untrained values would choose the same action for ever.
    begins_random: ClassVar[bool] = True
    exact_acting: ClassVar[bool] = False  # --actors.precision auto means float32
    imitates: ClassVar[bool] = False  # by --learner.clone-steps: the network's outputs are logits, or means and log-stds
    offline: ClassVar[Tree | None] = None  # defaults of --offline, above those of defaults(); None: it needs actors
    figures: ClassVar[Mapping[str, str]] = {}  # metric -> format in the learner's log line; it may name other metrics
    advice: ClassVar[Mapping[Limit, str]] = {}  # what the user may change when this process limits the run
    config: Any

    def __init__(self, config: Any) -> None:
        self.config = config

    @classmethod
    def defaults(cls, env: ExperienceSpec | None, accelerated: bool) -> Tree:
        """Defaults for any section, which presets override; those of `algorithm` replace the Config's for this kind of task.
        `env` is None before the environment has been tested."""
        return {}

    def needs(self, env: ExperienceSpec) -> Needs:
        """Raises ValueError, in one line, as policy() and update() do."""
        return Needs()

    def policy(self, spec: ExperienceSpec) -> nn.Module:
        """The network that actors use, in float32 on the CPU. Imports torch."""
        raise NotImplementedError

    def acting(self, spec: ExperienceSpec, inference: Inference) -> ActingPolicy:
        """The acting policy on top of an inference. Imports no torch."""
        raise NotImplementedError

    def update(self, spec: ExperienceSpec, runtime: Runtime) -> Update:
        """The learning half. Imports torch."""
        raise NotImplementedError

    def describe(self, spec: ExperienceSpec) -> PolicyDescription | None:
        """What learner/networks/describe.py says of policy(spec), without building it; None where that is not known, or policy()
        refuses it. Imports no torch. Ask known_description()."""
        return None

    def array_update(self, spec: ExperienceSpec, runtime: EngineRuntime) -> Update | None:
        """The learning half by the engine, equal to that of update(); None where torch must compute it. Imports no torch."""
        return None


def find_algorithm(name: str) -> type[Algorithm]:
    """The class of that name, built in or `package.module:Name`. Raises UnknownName."""
    found = find(name, ALGORITHMS, "algorithm", RELATED)
    lacking = [part for part in PARTS if not hasattr(found, part) or (part in OWN and is_inherited(found, part))]
    if lacking:
        raise UnknownName(f"{name} is not an algorithm: it lacks {', '.join(lacking)} (see learner/algorithms/base.py)")
    if "name" in found.Config.__struct_fields__:
        raise UnknownName(
            f"{name}: its Config has a field `name`, which is the key of the algorithm's own name: rename the field"
        )
    return found  # type: ignore[no-any-return]


def is_inherited(found: type, part: str) -> bool:
    return getattr(found, part) is getattr(Algorithm, part, None)


def known_description(algorithm: Algorithm, spec: ExperienceSpec) -> PolicyDescription | None:
    """algorithm.describe(spec); None where a subclass has replaced policy() alone."""
    return algorithm.describe(spec) if is_current(algorithm, "describe", "policy") else None


def is_current(algorithm: Algorithm, fast: str, plain: str) -> bool:
    """True unless a subclass has replaced the method `plain`, and not `fast`, which does the same in another way."""
    owner = next(kind for kind in type(algorithm).__mro__ if {fast, plain} & vars(kind).keys())
    return fast in vars(owner)


def action_kind(spec: ExperienceSpec) -> ActionKind:
    if isinstance(spec.action, Categorical):
        return "masked" if spec.action.masked else "categorical"
    if isinstance(spec.action, MultiCategorical):
        return "multicategorical"
    return "continuous"


def default_algorithm(env: ExperienceSpec, offline: bool = False) -> str:
    """The built-in algorithm for an environment of this spec, where the user names none; in an offline run one that needs no
    actors, if any of these has such actions."""
    table = SUITED_GOALS if has_goals(env) else SUITED_IMAGES if env.has_images else SUITED
    kind = action_kind(env)
    if offline and find_algorithm(table[kind]).offline is None:
        return next((name for name in offline_algorithms() if kind in find_algorithm(name).actions), table[kind])
    return table[kind]


def offline_algorithms() -> list[str]:
    """The built-in algorithms that can learn without actors."""
    return [name for name in ALGORITHMS if find_algorithm(name).offline is not None]


def read_algorithm(section: Mapping[str, Any]) -> Named:
    """Reads an [algorithm] section: the `name`, and its options, validated. Raises UnknownName, msgspec.ValidationError."""
    options = without_removed(section)
    name = str(options.pop("name", DEFAULT))
    return Named(name, msgspec.convert(options, find_algorithm(name).Config))


def make_algorithm(choice: Named) -> Algorithm:
    """Instantiates the algorithm. Raises UnknownName."""
    return find_algorithm(choice.name)(choice.options)


def join(env: ExperienceSpec, needs: Needs) -> ExperienceSpec:
    """The run's spec: the environment's half and the algorithm's needs. Raises SpecError."""
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
