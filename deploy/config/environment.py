"""The env section: what every environment has and, in the same flat table, the options of its family."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from actors.config import EnvConfig
from actors.envs.base import NoEnvOptions, builtin_name, families_with
from actors.envs.foreign.options import Option, default_of, missing_option, options_type, struct_of
from actors.envs.make import COMMON, unknown_option
from actors.errors import EnvError
from deploy.children import child_environment, python_command
from deploy.config.files import FLAGS, Tree, named
from deploy.config.values import Text, read_text
from deploy.errors import ConfigError
from transport.names import nearest


def options_of(given: Tree, written: bool = False) -> type[Struct]:
    """The struct of options that belongs to the environment of a configuration.

    Only a built-in family's module is imported here. Any other module is imported by another process, of the actors' interpreter,
    and only where options are given. For a configuration that has been `written` by a run it is not imported at all: its options
    have been checked, and the module may have been removed since. Raises ConfigError.
    """
    env_id, table = _env_id(given), given.get("env")
    names = table.keys() - COMMON if isinstance(table, dict) else set()
    if not builtin_name(env_id) and not names:
        return NoEnvOptions
    if not builtin_name(env_id) and written:
        return struct_of("Options", [Option(name) for name in sorted(names)])
    deploy = given.get("deploy")
    return foreign_options(env_id, str(deploy.get("actor_python", "")) if isinstance(deploy, dict) else "")


def foreign_options(env_id: str, python: str = "") -> type[Struct]:
    """The options of an environment whose family is not built in, as another process describes them. Raises ConfigError."""
    try:
        return options_type(env_id, python_command("actors.envs.foreign.options", python=python), child_environment(python))
    except EnvError as error:
        raise ConfigError(str(error)) from error


def known_keys(given: Tree, options: type[Struct]) -> Tree:
    """The keys of the env section, each with its default; None where it has none."""
    common: Tree = msgspec.to_builtins(EnvConfig(id=_env_id(given)))
    del common["options"]
    return common | {field.name: None if field.required else default_of(field) for field in msgspec.structs.fields(options)}


def joined(table: Tree, options: type[Struct]) -> Tree:
    """The section with its options as one struct; texts of flags become values, also in `table`.

    Raises ConfigError; msgspec.ValidationError with the path of the flat section.
    """
    own = {}
    for field in msgspec.structs.fields(options):
        value = table.get(field.name)
        if isinstance(value, Text):
            table[field.name] = value = read_text(f"env.{field.name}", field.type, value)
        if value is not None:
            own[field.name] = value
    if complaint := missing_option(table["id"], options, own):
        raise ConfigError(complaint)
    try:
        struct = msgspec.convert(own, options)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(str(error).replace("`$.", "`$.env.", 1)) from error
    return {key: value for key, value in table.items() if key not in options.__struct_fields__} | {"options": struct}


def unknown_key(env_id: str, key: str, known: Tree, origin: str) -> str:
    """The message about a key that the section does not have."""
    if origin == FLAGS and not families_with(key):
        flags = [f"--env.{name.replace('_', '-')}" for name in known if name != "id"]
        return f"unknown option --env.{key.replace('_', '-')}; {nearest('--env.' + key, flags)}"
    return f"{named(f'env.{key}', origin)}: {unknown_option(env_id, key, known)}"


def _env_id(given: Tree) -> str:
    table = given.get("env")
    return str(table.get("id", EnvConfig().id)) if isinstance(table, dict) else EnvConfig().id
