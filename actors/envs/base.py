"""What a family of environments says of itself, and how `--env` finds one.

A family is a class that inherits EnvironmentFamily: its options, how an environment is made, and what may be asked of it
besides Gymnasium's API. `--env` names a built-in one (FAMILIES), a registered Gymnasium id, or `package.module:Name` of anyone's
package: a family, or a function or class that makes an environment (a factory). Nothing is registered.

The command line imports the built-in families, so their modules import no simulator, no Gymnasium and no torch: the methods do.
Anyone else's module is imported by processes that make environments, and by the pre-flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from msgspec import Struct

from transport.names import find

if TYPE_CHECKING:
    import gymnasium
    import numpy as np

# What --env begins with -> the family. "X" serves X and X:VARIANT, "X/…" each id of that namespace.
FAMILIES: dict[str, str] = {
    "mario": "actors.envs.mario.family:Mario",
    "robot": "actors.envs.robot.family:Robot",
    "snake": "actors.envs.snake.family:Snake",
    "ALE/…": "actors.envs.atari.family:Atari",
    "headrace/FanucReach-v0": "actors.envs.robot.family:Robot",  # its names in Gymnasium's registry
    "headrace/FanucReachFlat-v0": "actors.envs.robot.family:Robot",
}

# Every other id.
REGISTERED, FACTORY = "actors.envs.foreign.families:Registered", "actors.envs.foreign.families:Factory"
FOREIGN = "actors.envs.foreign.families:find_foreign"

ComputeReward = Callable[["np.ndarray", "np.ndarray", Any], Any]


class Outcome(NamedTuple):
    """What one step of K simulators gave; all arrays are new.

    observation[name]: [K, *shape] at rest dtype, the last one where an episode ended. reward: [K] float32. terminated,
    truncated: [K] bool, never both. The rest is read where an episode ended: score and success [K], None where the environment
    does not say; group, the name under which an episode is reported ("" for none); level, the curriculum's at which it was
    played (-1 for none). group and level are empty where there is no such thing.
    """

    observation: dict[str, np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    score: Sequence[Any] | np.ndarray
    success: Sequence[Any] | np.ndarray
    group: Sequence[str] = ()
    level: Sequence[int] | np.ndarray = ()


class Simulators(Protocol):
    """K simulators that only the caller resets. Inherit it for what holds without a curriculum."""

    def reset(self, where: np.ndarray, seeds: Sequence[int | None]) -> dict[str, np.ndarray]:
        """Starts an episode in simulators `where` [M]; None goes on with a simulator's own stream. Gives [M, *shape] by name."""

    def step(self, actions: np.ndarray) -> Outcome:
        """Steps all by actions [K] of indices or [K, A] of floats."""

    def close(self) -> None: ...

    @property
    def levels(self) -> int:
        """Levels of the curriculum; 0: there is none."""
        return 0

    def set_level(self, level: int) -> None:
        """For episodes that start from now on; `level` is below `levels`."""
        raise ValueError(f"level {level} of {self.levels}")


class NoOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Of a family that has no options."""


class Setup(NamedTuple):
    """How an environment is to be made, besides its family's options."""

    max_episode_steps: int = 0  # truncate an episode after this many steps; 0: as the environment itself does
    render_mode: str | None = None  # None: as the environment likes
    evaluation: bool = False  # its episodes measure a policy


class EnvironmentFamily(Protocol):
    """Environments that are made in the same way. `make` is required; each other method is a hook, with what holds without it."""

    about: ClassVar[str] = ""  # a line for `headrace envs`
    Options: ClassVar[type[Struct]] = NoOptions  # --env.X and [env] X; each has a default. Meta(extra=FIXED): a resume keeps it
    default_stack: ClassVar[int] = 0  # observations stacked where env.stack is 0; 0: 4 for images, 1 for vectors

    env_id: str
    options: Any  # an instance of Options

    def __init__(self, env_id: str, options: Any) -> None:
        """Raises EnvError for options that do not fit each other."""
        self.env_id, self.options = env_id, options

    @classmethod
    def options_type(cls, env_id: str) -> type[Struct]:
        """Options, where they are not the same for each id of the family. Raises EnvError."""
        return cls.Options

    def make(self, setup: Setup) -> gymnasium.Env:
        """An environment with Gymnasium's API; its seed arrives at reset(seed=…). Raises EnvError, or ImportError for a package
        that is not installed."""
        raise NotImplementedError

    # ---- before a run

    def pinned(self) -> Any:
        """The options as a run keeps them, so that it goes on with the same environment: paths absolute, digests of files.
        Needs no simulator. Raises EnvError."""
        return self.options

    def settled(self) -> Any:
        """The options with `auto` replaced by what it means in this process, which is one of the interpreter of the actors."""
        return self.options

    # ---- stepping

    def simulators(self, env: gymnasium.Env, count: int) -> Simulators | None:
        """`count` of what `env` holds, stepped by one call; their `levels` are the curriculum's. None: stepped in turn."""
        return None

    def evaluation_start(self, random: np.random.Generator) -> dict[str, Any] | None:
        """The options of a reset that begins an episode of evaluation, for an environment that always starts the same way."""
        return None

    def compute_reward(self, env: gymnasium.Env) -> ComputeReward | None:
        """compute_reward(achieved [N, G], desired [N, G], info) -> [N], as Gymnasium's goal environments have it: what hindsight
        needs."""
        return getattr(env.unwrapped, "compute_reward", None)

    # ---- looking

    @property
    def frames_per_step(self) -> int:
        """Pictures of the simulator per step, by which a video keeps the simulator's own pace."""
        return 1

    def figures(self, env: gymnasium.Env) -> list[str]:
        """Lines for `headrace envs --check`."""
        return []

    def map(self, env: gymnasium.Env) -> np.ndarray | None:
        """[H, W, 3] RGB uint8 for `headrace envs --check --picture`. None: what the agent sees."""
        return None


def builtin_name(env_id: str) -> str:
    """The entry of FAMILIES that serves an id, or nothing."""
    name, namespace = env_id.partition(":")[0], f"{env_id.partition('/')[0]}/…"
    return next((known for known in (name, namespace) if known in FAMILIES), "")


def builtin_families() -> dict[str, type[EnvironmentFamily]]:
    """The built-in families, each by its first name."""
    names = {reference: name for name, reference in reversed(FAMILIES.items())}
    return {name: find_family(name) for name in FAMILIES if name in names.values()}


def families_with(option: str) -> list[str]:
    """The built-in families that have an option of this name."""
    return [name for name, family in builtin_families().items() if option in family.Options.__struct_fields__]


def is_foreign(env_id: str) -> bool:
    """Whether an id names something in a module of anyone's."""
    return ":" in env_id and not builtin_name(env_id)


def find_family(env_id: str) -> type[EnvironmentFamily]:
    """The family that makes `env_id`. Raises EnvError, in one line.

    Of a registered id only the form is looked at: whether there is such an id is known when it is made.
    """
    if name := builtin_name(env_id):
        return find(name, FAMILIES, "environment")  # type: ignore[no-any-return]
    if is_foreign(env_id):
        return find(FOREIGN, {}, "environment")(env_id)  # type: ignore[no-any-return]
    return find(REGISTERED, {}, "environment")  # type: ignore[no-any-return]


def variant(env_id: str) -> str:
    """What an id says beyond the family: 1-2 of mario:1-2, large of package.module:Maze:large."""
    before = 2 if is_foreign(env_id) else 1
    return next(iter(env_id.split(":", before)[before:]), "")
