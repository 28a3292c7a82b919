"""Two families: ids of Gymnasium's registry, and factories in users' modules. Gymnasium is imported when one is used."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.machinery
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from actors.envs.base import FAMILIES, EnvironmentFamily, EnvPlace, NoEnvOptions, Setup, Simulators, builtin_name
from actors.envs.foreign import options
from actors.envs.foreign.batched import backends
from actors.errors import EnvError, is_of_old_gym
from learner.devices import installing
from transport.names import UnknownName, find
from transport.text import plain

if TYPE_CHECKING:
    import gymnasium

T = TypeVar("T")
# Packages that an environment may need -> what to install.
EXTRAS = {
    "nes_py": "mario",
    "gym_super_mario_bros": "mario",
    "stable_retro": "retro",
    "pybullet": "robot",
    "ale_py": "atari",
    "pygame": "window",
    "Box2D": "box2d",
    "mujoco": "mujoco",
}
OLD_ATARI = re.compile(r"([A-Za-z]+?)(?:-ram)?(?:NoFrameskip|Deterministic)?-v\d+")
REGISTERED_BY = {  # what well-known ids begin with -> the module that registers them when it is imported
    re.compile(r"Fetch|Hand|AdroitHand|AntMaze|PointMaze|FrankaKitchen"): "gymnasium_robotics",
    re.compile(r"MiniGrid-|BabyAI-"): "minigrid",
    re.compile(r"MiniWorld-"): "miniworld",
    re.compile(r"Panda[A-Z]"): "panda_gym",
    re.compile(r"(highway|merge|roundabout|parking|intersection|racetrack)(-|$)"): "highway_env",
}
BACKEND = options.Option("backend", "str", backends.BACKENDS, default="auto", description=backends.ABOUT, fixed=False)


class Registered(EnvironmentFamily):
    """An id of Gymnasium's registry. Its options are the keyword arguments of its entry point, and `backend`."""

    about = (
        "any id in Gymnasium's registry, such as CartPole-v1; options: its keyword arguments (--env.continuous true), and "
        "--env.backend gymnasium, envpool, vector or auto"
    )

    @classmethod
    def options_type(cls, env_id: str) -> type[Struct]:
        def from_signature() -> type[Struct]:
            import gymnasium

            module, _, name = env_id.rpartition(":")
            if module:
                _registers(module, name)
            spec = gymnasium.spec(name)
            entry = spec.entry_point
            call = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
            return options.signature_options(call, spec.kwargs, (BACKEND,)) if callable(call) else cls.Options

        return one_line_errors(env_id, from_signature)

    def make(self, setup: Setup) -> gymnasium.Env:
        def build() -> gymnasium.Env:
            import gymnasium

            arguments = self._arguments()
            if setup.render_mode is not None:
                arguments["render_mode"] = setup.render_mode
            if setup.max_episode_steps:
                arguments["max_episode_steps"] = setup.max_episode_steps  # replaces the registered one
            # Without the checker, which costs time in every step: the pre-flight has checked the environment.
            return gymnasium.make(self.env_id, disable_env_checker=True, **arguments)

        return one_line_errors(self.env_id, build)

    def action_names(self, env: gymnasium.Env) -> list[str]:
        from actors.envs.foreign.names import known_names

        return super().action_names(env) or known_names(env)

    @property
    def pictures_may_be_published(self) -> bool:
        """True for Gymnasium's own environments."""

        def own() -> bool:
            import gymnasium

            return str(gymnasium.spec(self.env_id).entry_point).startswith("gymnasium.envs.")

        return one_line_errors(self.env_id, own)

    def resolve_options(self) -> Any:
        kind = self.options_type(self.env_id) if isinstance(self.options, NoEnvOptions) else type(self.options)
        if complaint := options.missing_option(self.env_id, kind, self.options.__struct_fields__):
            raise EnvError(complaint)
        if not _has_backend(kind):
            return self.options
        backend, arguments = getattr(self.options, BACKEND.name, BACKEND.default), self._arguments()
        found = one_line_errors(
            self.env_id, lambda: backends.resolve(backend, self.env_id, arguments, lambda: self.make(Setup()))
        )
        if found == backends.GYMNASIUM:  # without options no process has to describe them at the next launch
            return self.options
        own = kind() if isinstance(self.options, NoEnvOptions) else self.options
        return msgspec.structs.replace(own, backend=found)

    def simulators(self, env: gymnasium.Env, count: int) -> Simulators | None:
        if not _has_backend(type(self.options)):  # the launch writes another backend than Gymnasium's into the options
            return None
        backend, arguments = getattr(self.options, BACKEND.name), self._arguments()
        return one_line_errors(self.env_id, lambda: backends.open_batch(backend, env, self.env_id, count, arguments))

    def _arguments(self) -> dict[str, Any]:
        """The keyword arguments that differ from their defaults."""
        given = options.non_default(self.options)
        if _has_backend(type(self.options)):
            given.pop(BACKEND.name, None)
        return given


def _has_backend(kind: type[Struct]) -> bool:
    """True if these options have BACKEND. An environment may have an argument of that name instead."""
    return BACKEND in options.describe(kind)


class Factory(EnvironmentFamily):
    """A function or class in a user's module that makes an environment. Its options are its parameters. Those that EnvPlace has
    too are given by the place, unless the user sets them."""

    about = "package.module:factory, a function or class that makes an environment; options: its parameters (--env.size 12)"

    @classmethod
    def options_type(cls, env_id: str) -> type[Struct]:
        factory = find_factory(env_id)
        return struct_parameter(factory) or options.signature_options(factory, dict.fromkeys(EnvPlace._fields))

    def make(self, setup: Setup) -> gymnasium.Env:
        import gymnasium

        factory, kind = find_factory(self.env_id), self.options_type(self.env_id)
        if complaint := options.missing_option(self.env_id, kind, self.options.__struct_fields__):
            raise EnvError(complaint)
        own = kind() if isinstance(self.options, NoEnvOptions) else self.options
        if struct_parameter(factory):
            env = factory(own)
        else:
            place = {name: value for name, value in setup.place._asdict().items() if name in own.__struct_fields__}
            env = factory(**place | options.non_default(own), **_render_mode(factory, setup.render_mode))
        if not isinstance(env, gymnasium.Env):
            raise EnvError(f"{self.env_id} returned a {type(env).__name__}, not a gymnasium.Env{_instead(env)}")
        if setup.max_episode_steps:
            env = gymnasium.wrappers.TimeLimit(env, setup.max_episode_steps)
        return env


def find_foreign(env_id: str) -> type[EnvironmentFamily]:
    """The family of `package.module:Name`: Name itself if it is a family; Factory for a function or another class; Registered
    if importing the module registers an id of that name. Raises EnvError."""
    found = find_factory(env_id, or_registered=True)
    if found is None:
        return Registered
    return found if isinstance(found, type) and EnvironmentFamily in found.__mro__ else Factory


def find_factory(env_id: str, or_registered: bool = False) -> Any:
    """The function or class that an id names. With `or_registered`, None for an id that importing the module registers. Raises
    EnvError."""
    module_name, name = env_id.split(":")[:2]
    if meant := _module_of_file(module_name):
        raise EnvError(f"{env_id}: name the module, not its file: {meant}:{name}")
    try:
        found = find(f"{module_name}:{name}", {}, "environment")
    except UnknownName as error:
        if isinstance(error.__cause__, ImportError):
            raise EnvError(missing_package(env_id, error.__cause__)) from error
        if or_registered and _registers(module_name, name):
            return None
        raise EnvError(str(error)) from error
    if not callable(found):
        raise EnvError(f"{env_id}: {name} is not callable; name a function or class that makes the environment")
    return found


def struct_parameter(factory: Callable[..., Any]) -> type[Struct] | None:
    """The struct of options that a factory takes as its only argument; None if it takes keyword arguments."""
    found = getattr(factory, "Options", None)
    if found is None and (hints := options.hints(factory)):
        first = next(iter(signature(factory).parameters), "")
        found = hints.get(first)
    return found if isinstance(found, type) and issubclass(found, Struct) else None


def _instead(made: object) -> str:
    """The end of a message: what a factory is to return instead of what it has made; empty if that is not known."""
    import gymnasium

    if isinstance(made, gymnasium.vector.VectorEnv):
        return ": return one environment; --actors.envs-per-actor says how many an actor makes"
    if is_of_old_gym(made):
        replaced = "it is of the package gym, which gymnasium has replaced"
        return f": {replaced}; inherit from gymnasium.Env, or wrap it with the package shimmy"
    return ""


def _render_mode(factory: Callable[..., Any], wanted: str | None) -> dict[str, str]:
    """The argument render_mode of a factory that takes one: what is wanted, otherwise pictures."""
    if wanted is None or "render_mode" not in signature(factory).parameters:
        return {}
    known = getattr(factory, "metadata", {}).get("render_modes", ())
    return {"render_mode": "rgb_array" if wanted not in known and "rgb_array" in known else wanted}


def _registers(module_name: str, name: str) -> bool:
    """True if importing the module registers the id, or calling the function register_envs that some modules have."""
    import gymnasium

    register = getattr(importlib.import_module(module_name), "register_envs", None)
    if name not in gymnasium.registry and callable(register):
        register()
    return name in gymnasium.registry


def one_line_errors(env_id: str, make: Callable[[], T]) -> T:
    """Calls `make`. Raises EnvError, in one line, for Gymnasium's errors and for packages that are missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # keep Gymnasium's advice on newer versions out of the run's log
        try:
            import gymnasium
        except ImportError as error:
            raise EnvError(missing_package(env_id, error)) from error
        try:
            return make()
        except gymnasium.error.DependencyNotInstalled as error:
            raise EnvError(missing_package(env_id, error)) from error
        except gymnasium.error.Error as error:
            if env_id.rpartition(":")[2] in gymnasium.registry:
                raise EnvError(f"{env_id}: {_one_line(error)}") from error
            if meant := _meant(env_id):
                raise EnvError(f"unknown environment {env_id!r}; did you mean {meant}?") from error
            if package := next((module for ids, module in REGISTERED_BY.items() if ids.match(env_id)), ""):
                raise EnvError(_of_package(env_id, package)) from error
            near = _nearest(env_id, [*FAMILIES, *gymnasium.registry])
            raise EnvError(f"unknown environment {env_id!r}{near}; headrace envs lists them") from error
        except ImportError as error:
            raise EnvError(missing_package(env_id, error)) from error


def _of_package(env_id: str, package: str) -> str:
    """The message about an id that a package registers."""
    if find_spec(package) is not None:
        return f"unknown environment {env_id!r}; did you mean {package}:{env_id}?"
    install = f"pip install {package.replace('_', '-')}"
    return f"unknown environment {env_id!r}: {package} registers such ids; {install}, then --env {package}:{env_id}"


def _meant(env_id: str) -> str:
    """The id that one without a colon may stand for: a module's, or one that an installed package registers when imported."""
    if game := _atari_game(env_id):
        return game
    if package := _registering_package(env_id):
        return f"{package}:{env_id}"
    if meant := _module_of_file(env_id):
        return f"{meant}:FUNCTION"
    module, _, name = env_id.rpartition(".")
    found = next((each for each in (env_id, module) if each and _is_module(each)), None)
    return "" if found is None else f"{found}:{name if found == module else 'FUNCTION'}"


def _atari_game(env_id: str) -> str:
    """The id of an Atari game by an older one, such as PongNoFrameskip-v4; empty where there is no such game. Imports nothing."""
    spec, named = find_spec("ale_py"), OLD_ATARI.fullmatch(env_id)
    if spec is None or named is None:
        return ""
    file = re.sub(r"(?<=.)(?=[A-Z])", "_", named[1]).lower() + ".bin"
    found = any(Path(folder, "roms", file).exists() for folder in spec.submodule_search_locations or ())
    return f"ALE/{named[1]}-v5" if found else ""


def _module_of_file(name: str) -> str:
    """The module that the name of a Python file stands for; empty for another name."""
    path = Path(name)
    if path.suffix != ".py":
        return ""
    return path.stem if path.is_absolute() or ".." in path.parts else ".".join(path.with_suffix("").parts)


def _registering_package(env_id: str) -> str | None:
    """The installed package whose `__init__.py` has the id as a word. Nothing is imported. Not gym, whose registry is another."""
    quoted = re.compile(rb"""["']""" + re.escape(env_id.encode()) + rb"""["']""")
    for package in sorted(metadata.packages_distributions()):
        for folder in map(Path, sys.path):
            for file in (folder / package / "__init__.py", folder / package / "envs" / "__init__.py"):
                with contextlib.suppress(OSError):
                    if package not in ("gymnasium", "gym") and quoted.search(file.read_bytes()):
                        return package
    return None


def _is_module(name: str) -> bool:
    """True if there is a module of that dotted name, also in the working directory. Nothing is imported."""
    path: Sequence[str] = [*sys.path, os.getcwd()]
    parts = name.split(".")
    for number, part in enumerate(parts, 1):
        found = importlib.machinery.PathFinder.find_spec(".".join(parts[:number]), path) if part.isidentifier() else None
        if found is None:
            return False
        path = found.submodule_search_locations or []
    return True


def missing_package(env_id: str, error: Exception) -> str:
    """The message for an import that failed."""
    told = str(error).lower()
    missing = told if "install" in told or "no module" in told else ""  # otherwise it may speak of a package that is there
    if isinstance(error, ImportError) and error.name:
        missing = error.name.lower()
    for package in EXTRAS:
        if package.lower() in missing and find_spec(package) is None:
            return install_hint(env_id, package)
    module = env_id.partition(":")[0]
    absent = isinstance(error, ModuleNotFoundError) and missing and f"{module}.".lower().startswith(f"{missing}.")
    if ":" in env_id and not builtin_name(env_id) and absent:
        return f"{env_id}: no module {module!r} in {os.getcwd()} or among the installed packages"
    return f"{env_id} cannot be imported: {_one_line(error)}"


def install_hint(env_id: str, package: str) -> str:
    """The message for a package that is not installed."""
    return f"{env_id} needs {package}, which is not installed: {installing.headrace(EXTRAS[package])}"


def _nearest(name: str, known: list[str]) -> str:
    """A suggestion to append to a message, or nothing."""
    lower = {other.lower(): other for other in known}
    close = difflib.get_close_matches(name.lower(), lower, n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(lower[match] for match in close)}?)" if close else ""


def _one_line(error: BaseException) -> str:
    return plain(" ".join(str(error).split())) or type(error).__name__
