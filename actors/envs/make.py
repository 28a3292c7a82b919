"""From a name to an environment. Nothing heavy is imported before an environment is asked for."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

from actors.config import EnvConfig
from actors.envs.errors import EnvError

if TYPE_CHECKING:
    import gymnasium

# The packages behind an environment that may be missing, and what to install for them.
EXTRAS = {
    "nes_py": "headrace[mario]",
    "gym_super_mario_bros": "headrace[mario]",
    "stable_retro": "headrace[retro]",
    "pybullet": "headrace[robot]",
    "ale_py": "headrace[atari]",
    "pygame": "gymnasium[classic-control]",
    "Box2D": "gymnasium[box2d]",
    "mujoco": "gymnasium[mujoco]",
}


def known_envs() -> dict[str, str]:
    """The short names of this project's own workloads, each with a line about it."""
    return {
        "mario": "Super Mario Bros. 1-1, 84x84 grey; mario:WORLD-STAGE for another level (worlds 1-8, stages 1-4)",
        "snake": "Snake, 10x10, seen from its head; snake:8 for another size, "
        "snake:dim=10,starting_blocks=3,dist_to_border=3 for all there is",
    }


def make_env(config: EnvConfig, render_mode: str | None = None) -> gymnasium.Env:
    """Makes the environment that `config.id` names, with Gymnasium's API and no wrapper of ours but a time limit.

    `render_mode` is for registered ids; the others have the one that they have. Raises EnvError, in one line, when it is
    unknown, lacks a package or cannot be made.
    """
    name, _, rest = config.id.partition(":")
    if name == "mario":
        from actors.envs.mario import MarioEnv

        return MarioEnv(rest, config.actions, config.skip, config.max_episode_steps, config.backend)
    atari = config.id.startswith("ALE/")
    if config.actions or config.backend or (config.skip and not atari):
        option = "actions" if config.actions else "backend" if config.backend else "skip"
        owners = "mario and ALE/…" if option == "skip" else "mario"
        raise EnvError(f"env.{option}: only {owners} have it; {config.id} does not")
    if name == "snake":
        from actors.envs.snake import SnakeEnv, parse_rules

        return SnakeEnv(parse_rules(rest), config.max_episode_steps)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's advice on newer versions is not for a run's log
            return _from_module(config, render_mode) if rest else _from_registry(config, render_mode)
    except ImportError as error:
        raise EnvError(_missing_package(config.id, error, (error.name or "").lower())) from error


def _from_module(config: EnvConfig, render_mode: str | None) -> gymnasium.Env:
    """A factory of a module (the working directory is searched too), or an id that the module registers."""
    import gymnasium

    module_name, _, attribute = config.id.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = importlib.import_module(module_name)
    factory = getattr(module, attribute, None)
    if factory is None:
        if attribute in gymnasium.registry:
            return _from_registry(config, render_mode)
        raise EnvError(f"{config.id}: module {module_name} has no {attribute}{_nearest(attribute, dir(module))}")
    if not callable(factory):
        raise EnvError(f"{config.id}: {attribute} cannot be called; name a function or class that makes the environment")
    env = factory()
    if not isinstance(env, gymnasium.Env):
        raise EnvError(f"{config.id}: gave a {type(env).__name__}, not a gymnasium.Env")
    if config.max_episode_steps:
        env = gymnasium.wrappers.TimeLimit(env, config.max_episode_steps)
    return env


def _from_registry(config: EnvConfig, render_mode: str | None) -> gymnasium.Env:
    """A registered Gymnasium id. A step limit of ours replaces the registered one."""
    import gymnasium

    options: dict[str, Any] = {"disable_env_checker": True}  # the pre-flight has checked, at no cost per step
    if render_mode is not None:
        options["render_mode"] = render_mode
    try:
        if config.id.startswith("ALE/"):
            from actors.envs.atari import make_atari

            return make_atari(config.id, config.skip, config.max_episode_steps, **options)
        if config.max_episode_steps:
            options["max_episode_steps"] = config.max_episode_steps
        return gymnasium.make(config.id, **options)
    except gymnasium.error.DependencyNotInstalled as error:
        raise EnvError(_missing_package(config.id, error, str(error).lower())) from error
    except gymnasium.error.Error as error:
        if config.id in gymnasium.registry:
            raise EnvError(f"{config.id}: {_one_line(error)}") from error
        known = [*known_envs(), *gymnasium.registry]
        raise EnvError(f"unknown environment {config.id!r}{_nearest(config.id, known)}; headrace envs lists them") from error


def _nearest(name: str, known: list[str]) -> str:
    """A suggestion to append to a message, or nothing."""
    lower = {other.lower(): other for other in known if not other.startswith("_")}
    close = difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(lower[match] for match in close)}?)" if close else ""


def _missing_package(env_id: str, error: Exception, missing: str) -> str:
    """The line for an import that failed; `missing`, in lower case, names the package or is a text that does."""
    for package, extra in EXTRAS.items():
        if package.lower() in missing:
            return f"{env_id} needs {package}, which is not installed: pip install '{extra}'"
    module = env_id.partition(":")[0]
    if ":" in env_id and missing and f"{module}.".lower().startswith(f"{missing}."):
        return f"{env_id}: no module {module!r} in {os.getcwd()} or among the installed packages"
    return f"{env_id} cannot be imported: {_one_line(error)}"


def _one_line(error: BaseException) -> str:
    """An exception's message without line breaks, its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__
