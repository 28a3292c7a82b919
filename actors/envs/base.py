"""The protocol of an environment family, and how `--env` finds one.

A family makes environments of one kind. A family in a package of your own takes three lines:

    class Mazes(EnvironmentFamily):
        def make(self, setup: Setup) -> gymnasium.Env:
            return Maze(self.options.size, render_mode=setup.render_mode)

`--env my.package:Mazes` then uses it; nothing is registered. `self.options` is an instance of the class attribute `Options`, a
msgspec.Struct whose fields are the flags `--env.X`. `--env` also takes a built-in family (FAMILIES), an id of Gymnasium's
registry, and `package.module:factory`, a function or class that makes an environment. A family is only needed for the hooks.

Every method but `make` is an optional hook:

    hook                called by                                 when
    options_type        headrace up and --help, in a process      the options of --env are read
                        of the actors' interpreter
    pin_options         headrace up, then the pre-flight          once per launch
    resolve_options     the pre-flight                            once per launch
    notes               the pre-flight                            once per launch
    announcement        headrace up                               once per launch
    listen              actors                                    once, if decides_steps
    default_stack       the pre-flight                            env.stack is 0
    make                the pre-flight, actors, evaluator,        once per environment; once per process if there are simulators
                        headrace eval and demo
    simulators          the pre-flight, actors, evaluator,        once per process; not used if env.wrappers are set
                        headrace eval
    compute_reward      the pre-flight; actors with hindsight     once; for the chunks that leave an actor
    frames_per_step     headrace demo --video, headrace play      once
    action_names        headrace demo --overlay, evaluator        once, if there is an overlay
                        headrace play                             once
                        actors                                    when the page shows what they see
    pictures_may_be_…   evaluator                                 once, if it records videos
    figures, map        headrace envs --check, with --picture     once

The pre-flight is a process that `headrace up` starts first: it makes the environment and steps it under a time limit.

The command line imports the modules of the built-in families, so these import neither a simulator nor Gymnasium nor torch at
their top level. Only the pre-flight and the processes that make environments import the module of a user's family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from msgspec import Struct

from actors.errors import EnvError
from transport.names import find

if TYPE_CHECKING:
    import gymnasium
    import numpy as np

    from actors.hindsight import ComputeReward

# What --env begins with -> the family. "X" serves X and X:VARIANT; "X/…" serves each id of that namespace.
FAMILIES: dict[str, str] = {
    "mario": "actors.envs.mario.family:Mario",
    "robot": "actors.envs.robot.family:Robot",
    "snake": "actors.envs.snake.family:Snake",
    "remote": "actors.envs.remote.family:Remote",
    "openenv": "actors.envs.remote.family:OpenEnv",
    "ALE/…": "actors.envs.atari.family:Atari",
    "headrace/FanucReach-v0": "actors.envs.robot.family:Robot",  # the robot's ids in Gymnasium's registry
    "headrace/FanucReachFlat-v0": "actors.envs.robot.family:Robot",
}

# The families of all other ids.
REGISTERED, FACTORY = "actors.envs.foreign.families:Registered", "actors.envs.foreign.families:Factory"
FOREIGN = "actors.envs.foreign.families:find_foreign"


class NoEnvOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a family that has none."""


class EnvPlace(NamedTuple):
    """The number of an environment within a run, for what two of them cannot share, such as a port or a display. A factory with
    parameters of these names receives them."""

    worker_index: int = 0  # 1 for the first actor of a run; 0 for the evaluator and where one is made outside actors
    env_index: int = 0  # among the environments of that process
    seed: int = 0  # of its first episode


FIRST = EnvPlace()


class Setup(NamedTuple):
    """Arguments for making an environment, besides its family's options."""

    max_episode_steps: int = 0  # truncate an episode after this many steps; 0: the environment's own limit
    render_mode: str | None = None  # None: the environment's default
    evaluation: bool = False  # True: its episodes measure a policy
    place: EnvPlace = FIRST


class EnvironmentFamily(Protocol):
    """Inherit it and implement `make`. The other methods have defaults."""

    about: ClassVar[str] = ""  # one line for `headrace envs`
    # The flags --env.X and the keys of [env]. Every field needs a default; Meta(extra=FIXED): a resumed run must keep the value.
    Options: ClassVar[type[Struct]] = NoEnvOptions
    default_stack: ClassVar[int] = 0  # observations stacked if env.stack is 0; 0: 4 for images, 1 for stacks of them and vectors
    success_name: ClassVar[str] = ""  # a further name of the success rate in `headrace eval --json`, such as flag_rate
    # An environment takes a new seed at the first reset after so many steps. From there on its log repeats what it did. To seed
    # each short episode would cost more: a generator takes as long to make as some steps.
    seed_steps: ClassVar[int] = 200
    ends_episodes: ClassVar[bool] = False  # True: the pre-flight need not look for the end of an episode
    decides_steps: ClassVar[bool] = False  # True: programs connect to an actor (`listen`) and decide when a step is taken
    reports_success: ClassVar[bool] = False  # True: an episode whose info has no is_success has failed

    env_id: str  # as the user typed it; `variant(env_id)` is the part after the family's name
    options: Any  # an instance of Options

    def __init__(self, env_id: str, options: Any) -> None:
        """Raises EnvError for options that contradict each other."""
        self.env_id, self.options = env_id, options

    @classmethod
    def options_type(cls, env_id: str) -> type[Struct]:
        """The struct of options, if it depends on the id. Raises EnvError."""
        return cls.Options

    def make(self, setup: Setup) -> gymnasium.Env:
        """One environment with Gymnasium's API, which is seeded later by reset(seed=…). Raises EnvError, or ImportError if a
        package is not installed."""
        raise NotImplementedError

    # ---- at launch

    def pin_options(self) -> Any:
        """The options in a form that keeps a resumed run on the same environment: absolute paths, digests of files. It must not
        import a simulator. Raises EnvError."""
        return self.options

    def resolve_options(self) -> Any:
        """The options with `auto` replaced by a value. It runs in the actors' interpreter, where it can see what is installed."""
        return self.options

    def notes(self) -> tuple[str, ...]:
        """Lines that the pre-flight prints: what is not wrong, but not what a user may expect."""
        return ()

    def announcement(self) -> str:
        """A line that `headrace up` prints before the pre-flight: what that waits for."""
        return ""

    # ---- stepping

    def listen(self, number: int, serve: Callable[[Program], None], refused: Callable[[str], None]) -> Closable:
        """Lets programs connect to actor `number` until it is closed, if `decides_steps`. `serve` is called with each, in a
        thread of its own, and ends the connection when it returns; `refused` with a line about each that was not let in. Raises
        EnvError."""
        raise NotImplementedError

    def simulators(self, env: gymnasium.Env, count: int) -> Simulators | None:
        """`count` copies of `env` that one call steps, for example by array operations. `env` itself is not stepped then. None:
        `count` environments are made and stepped in turn. Raises EnvError."""
        return None

    def compute_reward(self, env: gymnasium.Env) -> ComputeReward | None:
        """The function compute_reward(achieved [N, G], desired [N, G], info) -> [N] that hindsight needs, as in Gymnasium's goal
        environments. None: no hindsight."""
        return getattr(env.unwrapped, "compute_reward", None)

    # ---- pictures and descriptions

    def action_names(self, env: gymnasium.Env) -> list[str]:
        """The names of discrete actions, or of the entries of a continuous one, for pictures and a person's keys; what is beyond
        the end of the list is shown as its number."""
        own = getattr(env.unwrapped, "get_action_meanings", None)
        return [str(name) for name in own()] if callable(own) else []

    @property
    def pictures_may_be_published(self) -> bool:
        """True if a video of the environment may be published with a policy. False by default; keep it False for commercial
        games."""
        return False

    @property
    def frames_per_step(self) -> int:
        """Frames of the simulator per step: a video shows render_fps / frames_per_step steps per second."""
        return 1

    def figures(self, env: gymnasium.Env) -> list[str]:
        """Lines that describe the environment."""
        return []

    def map(self, env: gymnasium.Env) -> np.ndarray | None:
        """A picture [H, W, 3] RGB uint8 of the environment. None: a picture of observations is drawn."""
        return None


class SimulatorStep(NamedTuple):
    """The result of one step of K simulators. All arrays are new.

    observation[name]: [K, *shape] at rest dtype, or float32 that VectorEnv quantises; where an episode ended, its last
    observation; "action_mask" is the mask of actions, if there is one. reward: [K] float32. terminated, truncated: [K] bool,
    never both. The other fields are only read where an episode ended. score and success: [K]; None where the environment has no
    such figure. group: the name under which an episode is reported, such as a tier; "" for none. level: the curriculum's level
    that the episode was played at; -1 for the full task. group and level may be empty. info: further values, [K] by their keys.
    """

    observation: dict[str, np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    score: Sequence[Any] | np.ndarray
    success: Sequence[Any] | np.ndarray
    group: Sequence[str] = ()
    level: Sequence[int] | np.ndarray = ()
    info: Mapping[str, Any] = {}


class ProgramLeft(EnvError):
    """A program has left, was silent for too long, or has broken the rules; one line."""


class Closable(Protocol):
    def close(self) -> None: ...


class Program(Protocol):
    """A program that has connected, with environments of its own. Calls that wait for it raise ProgramLeft."""

    waiting: Callable[[], AbstractContextManager[object]]  # is entered while it waits for the program

    @property
    def name(self) -> str: ...

    @property
    def environments(self) -> int: ...

    def make(self) -> gymnasium.Env:
        """Its environments, for VectorEnv: `simulators` of the family steps all of them."""

    def refuse(self, why: str, again: bool = False) -> ProgramLeft:
        """Tells it why its connection ends; `again`: it may connect again; otherwise the same would happen."""

    def dismiss(self, why: str, again: bool = False) -> None:
        """Tells it why its connection ends; `again`: it may connect again. May be called by another thread."""


class Simulators(Protocol):
    """K simulators that one call steps. They do not reset by themselves. Inherit it for the defaults of `levels`."""

    takes_seeds: ClassVar[bool] = True  # False: a reset of some of them ignores their seeds

    def reset(self, where: np.ndarray, seeds: Sequence[int | None]) -> dict[str, np.ndarray]:
        """Starts an episode in simulators `where` [M] and gives the observations [M, *shape] by name. A seed seeds a simulator's
        random generator; None keeps the generator as it is."""

    def step(self, actions: np.ndarray) -> SimulatorStep:
        """Steps all simulators by actions [K] of indices, or [K, A] of floats."""

    def close(self) -> None: ...

    def picture(self) -> np.ndarray | None:
        """[H, W, 3] RGB uint8 of the first simulator, for a person who steers it; None where it draws none."""
        return None

    @property
    def levels(self) -> int:
        """Number of levels of the curriculum; 0: there is none. The supervisor raises the level by the success rate."""
        return 0

    def set_level(self, level: int) -> None:
        """Sets the level of the episodes that start from now on. Raises ValueError unless 0 <= level < levels."""
        raise ValueError(f"level {level} of {self.levels}")


def builtin_name(env_id: str) -> str:
    """The key of FAMILIES that an id belongs to; empty if it belongs to none."""
    name, namespace = env_id.partition(":")[0], f"{env_id.partition('/')[0]}/…"
    return next((known for known in (name, namespace) if known in FAMILIES), "")


def builtin_families() -> dict[str, type[EnvironmentFamily]]:
    """The built-in families by name; a family with several names appears under the first."""
    names = {reference: name for name, reference in reversed(FAMILIES.items())}
    return {name: find_family(name) for name in FAMILIES if name in names.values()}


def families_with(option: str) -> list[str]:
    """The names of the built-in families that have this option."""
    return [name for name, family in builtin_families().items() if option in family.Options.__struct_fields__]


def is_foreign(env_id: str) -> bool:
    """True if an id names something in a user's module."""
    return ":" in env_id and not builtin_name(env_id)


def find_family(env_id: str) -> type[EnvironmentFamily]:
    """The family that makes `env_id`. Raises EnvError, in one line.

    Any id without a colon that is not built in counts as registered; whether Gymnasium knows it shows when it is made.
    """
    if name := builtin_name(env_id):
        return find(name, FAMILIES, "environment")  # type: ignore[no-any-return]
    if is_foreign(env_id):
        return find(FOREIGN, {}, "environment")(env_id)  # type: ignore[no-any-return]
    return find(REGISTERED, {}, "environment")  # type: ignore[no-any-return]


def variant(env_id: str) -> str:
    """The part of an id after the family's name: 1-2 of mario:1-2, large of package.module:Maze:large."""
    before = 2 if is_foreign(env_id) else 1
    return next(iter(env_id.split(":", before)[before:]), "")
