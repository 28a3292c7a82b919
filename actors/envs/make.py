"""Makes environments from the env section of a configuration, and ends processes that have made some."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, get_args, get_origin

import msgspec
from msgspec import Struct

from actors.config import EnvConfig
from actors.envs.base import FIRST, EnvironmentFamily, EnvPlace, Setup, builtin_name, families_with, find_family
from actors.envs.foreign.options import missing_option, non_default
from actors.errors import EnvError
from transport.names import UnknownName, find, nearest

if TYPE_CHECKING:
    import gymnasium

LEAVE_SECONDS = 1.0
COMMON = frozenset(EnvConfig.__struct_fields__) - {"options"}


def read_env(section: Mapping[str, Any]) -> EnvConfig:
    """Reads the env section of a configuration. The family's options stay a dict until open_family checks them, because that may
    import a user's module. Raises msgspec.ValidationError."""
    config = msgspec.convert({key: value for key, value in section.items() if key in COMMON}, EnvConfig)
    return msgspec.structs.replace(config, options={key: value for key, value in section.items() if key not in COMMON})


def env_section(config: EnvConfig) -> dict[str, Any]:
    """The env section as one flat table, as in TOML and JSON."""
    section: dict[str, Any] = msgspec.to_builtins(config)
    del section["options"]
    return section | options_table(config.options)


def options_table(options: Any) -> dict[str, Any]:
    """Options as a table without None, which TOML lacks. A factory's and a registered id's only if they are not the default."""
    sparse = isinstance(options, Struct) and options.__struct_config__.omit_defaults
    table: dict[str, Any] = msgspec.to_builtins(non_default(options) if sparse else options) or {}
    return {key: value for key, value in table.items() if value is not None}


def without_foreign_options(section: Mapping[str, Any]) -> dict[str, Any]:
    """An env section of format 1, which has the options of all families, without those of other families."""
    name = builtin_name(str(section.get("id", "")))
    own = find_family(name).Options.__struct_fields__ if name else ()
    return {key: value for key, value in section.items() if key in COMMON or key in own}


def open_family(config: EnvConfig) -> EnvironmentFamily:
    """The family of `config.id`, with its options. Raises EnvError."""
    family = find_family(config.id)
    options = config.options
    if isinstance(options, dict):
        options = _checked(config.id, options, family.options_type(config.id)) if options else None
    return family(config.id, family.Options() if options is None else options)


def _checked(env_id: str, options: dict[str, Any], kind: type[Struct]) -> Struct:
    for option in options:
        if option not in kind.__struct_fields__:
            raise EnvError(f"env.{option}: {unknown_option(env_id, option, kind.__struct_fields__)}")
    if complaint := missing_option(env_id, kind, options):
        raise EnvError(complaint)
    try:
        return msgspec.convert(options, kind)
    except msgspec.ValidationError as error:
        text, _, name = str(error).replace("`", "").partition(" - at $.")
        field = next((field for field in msgspec.structs.fields(kind) if field.name == name), None)
        choices = choices_of(field.type) if field else ()
        if choices:
            text = f"{env_id} has {', '.join(filter(None, choices))}, not {options[name]}"
        raise EnvError(f"env.{name}: {text}" if name else f"{env_id}: {text}") from error


def choices_of(kind: Any) -> tuple[str, ...]:
    """The values of a Literal; empty for another type."""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_args(plain) if get_origin(plain) is Literal else ()


def unknown_option(env_id: str, option: str, known: Iterable[str]) -> str:
    """The message about an option that an environment does not have."""
    if having := families_with(option):
        return f"only {' and '.join(having)} {'has' if len(having) == 1 else 'have'} it; {env_id} does not"
    return f"{env_id} has no such option; {nearest(option, {*known, *COMMON})}"


def resolve_env(config: EnvConfig) -> EnvConfig:
    """The section as a run stores it, with the hooks pin_options and resolve_options applied. Call it in the actors' interpreter.
    Raises EnvError."""
    config = msgspec.structs.replace(config, options=open_family(config).pin_options())
    return msgspec.structs.replace(config, options=open_family(config).resolve_options())


def make_env(
    config: EnvConfig, render_mode: str | None = None, evaluation: bool = False, place: EnvPlace = FIRST
) -> gymnasium.Env:
    """Makes the environment that `config` describes, with its wrappers. Raises EnvError, in one line, if it is unknown, needs a
    package that is not installed, or cannot be made."""
    return wrap(open_family(config).make(Setup(config.max_episode_steps, render_mode, evaluation, place)), config)


def wrap(env: gymnasium.Env, config: EnvConfig) -> gymnasium.Env:
    """The environment with the wrappers of `config`. Raises EnvError."""
    for name in config.wrappers:
        env = _wrap(env, name)
    return env


def _wrap(env: gymnasium.Env, name: str) -> gymnasium.Env:
    import gymnasium

    try:
        wrapped = find(name, {}, "wrapper")(env)
    except UnknownName as error:
        raise EnvError(f"env.wrappers: {error}") from error
    if not isinstance(wrapped, gymnasium.Env):
        raise EnvError(f"env.wrappers: {name} returned a {type(wrapped).__name__}, not a gymnasium.Env")
    return wrapped


def leave(main: Callable[[], int]) -> NoReturn:
    """Ends this process with the exit status that `main` returns. Threads of a simulator that still run delay it by at most
    LEAVE_SECONDS: Python by itself would wait for them without end."""
    status = 1
    try:
        status = main()
    finally:
        threading.Thread(target=lambda: _cut(status), daemon=True).start()
    sys.exit(status)


def _cut(status: int) -> None:
    time.sleep(LEAVE_SECONDS)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever read this stream has closed it
            stream.flush()
    os._exit(status)
