"""From a name to an environment. Nothing heavy is imported before an environment is asked for."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
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
# The robot's names in Gymnasium's registry, and its form of each.
ROBOTS = {"headrace/FanucReach-v0": "", "headrace/FanucReachFlat-v0": "flat"}

# Who has an option that not every environment has, and what they may say of who simulates.
OWNERS = {
    "actions": ("mario",),
    "backend": ("mario", "robot"),
    "skip": ("mario", "ALE/…"),
    **dict.fromkeys(("urdf", "arm", "reward", "tolerance", "tier", "curriculum"), ("robot",)),
}
BACKENDS = {"mario": ("nes_py", "retro", "auto"), "robot": ("pybullet", "kinematic")}


def known_envs() -> dict[str, str]:
    """The short names of this project's own workloads, each with a line about it."""
    return {
        "mario": "Super Mario Bros. 1-1, 84x84 grey; mario:WORLD-STAGE for another level (worlds 1-8, stages 1-4)",
        "robot": "FANUC LR Mate 200iD, reaches any target of its workspace; robot:flat for one vector in place of goals; "
        "--env.urdf for another arm, --env.tier, --env.tolerance, --env.reward, --env.backend",
        "snake": "Snake, 10x10, seen from its head; snake:8 for another size, "
        "snake:dim=10,starting_blocks=3,dist_to_border=3 for all there is",
    }


def pinned(config: EnvConfig) -> dict[str, str]:
    """Keys of `config` as a run is to keep them, so that it goes on with the same environment: where an arm's file lies, and what
    it was when the run began. Raises EnvError."""
    name = config.id.partition(":")[0]
    if name not in ("robot", *ROBOTS):
        return {}
    from actors.envs.robot.urdf import OWN_URDF, file_digest

    path = Path(config.urdf).resolve() if config.urdf else OWN_URDF
    return {"urdf": str(path) if config.urdf else "", "arm": config.arm or file_digest(path)}


def make_env(config: EnvConfig, render_mode: str | None = None) -> gymnasium.Env:
    """Makes the environment that `config.id` names, with Gymnasium's API and no wrapper of ours but a time limit.

    `render_mode` is for registered ids; the others have the one that they have. Raises EnvError, in one line, when it is
    unknown, lacks a package or cannot be made.
    """
    name, _, rest = config.id.partition(":")
    _refuse_foreign_options(config, name)
    if name == "mario":
        from actors.envs.mario.env import MarioEnv

        return MarioEnv(rest, config.actions, config.skip, config.max_episode_steps, config.backend)
    if name in ("robot", *ROBOTS):
        return _robot(config, ROBOTS.get(name, rest), render_mode)
    if name == "snake":
        from actors.envs.snake.env import SnakeEnv, parse_rules

        return SnakeEnv(parse_rules(rest), config.max_episode_steps)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's advice on newer versions is not for a run's log
            return _from_module(config, render_mode) if rest else _from_registry(config, render_mode)
    except ImportError as error:
        raise EnvError(_missing_package(config.id, error, (error.name or "").lower())) from error


def _refuse_foreign_options(config: EnvConfig, name: str) -> None:
    """Raises EnvError for an option that is set and that this environment does not have."""
    kind = "robot" if name in ROBOTS else "ALE/…" if name.startswith("ALE/") else name
    usual = EnvConfig()
    for option, owners in OWNERS.items():
        if getattr(config, option) != getattr(usual, option) and kind not in owners:
            has = "has" if len(owners) == 1 else "have"
            raise EnvError(f"env.{option}: only {' and '.join(owners)} {has} it; {config.id} does not")
    if config.backend and config.backend not in BACKENDS[kind]:
        raise EnvError(f"env.backend: {config.id} has {', '.join(BACKENDS[kind])}, not {config.backend}")


def _robot(config: EnvConfig, form: str, render_mode: str | None) -> gymnasium.Env:
    """The arm, if it is still the one that a run began with."""
    from actors.envs.robot.env import ReachEnv

    if form not in ("", "flat"):
        raise EnvError(f"{config.id}: the robot has two forms, robot (goals) and robot:flat (one vector)")
    backend = config.backend or "pybullet"
    if backend == "pybullet":
        _need("pybullet", config.id)
    env = ReachEnv(
        config.urdf,
        flat=form == "flat",
        reward=config.reward,
        tolerance=config.tolerance,
        tier=config.tier,
        backend=backend,
        curriculum=config.curriculum,
        max_steps=config.max_episode_steps,
        render_mode=render_mode or "rgb_array",
    )
    if config.arm not in ("", env.arm.digest):
        raise EnvError(
            f"{env.arm.path} has changed since the run began, and its policy is for the arm as it was "
            f"(digest {config.arm[:8]}, now {env.arm.digest[:8]}): bring the old file back, or start anew with --fresh"
        )
    return env


def _need(package: str, env_id: str) -> None:
    """Raises EnvError for a package that is not installed, before anything depends on it."""
    if find_spec(package) is None:
        raise EnvError(f"{env_id} needs {package}, which is not installed: pip install '{EXTRAS[package]}'")


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
