"""Options of environments outside this package: of a factory, of a registered id, of a family in a user's module.

A factory's options are its parameters, typed by their annotations or defaults. Or they are the fields of a struct, which is the
factory's attribute `Options` or the annotation of its first parameter; the factory then takes the struct as its only argument.

The command line needs the names, types, bounds and help texts of such options, but must not import the module: it may import a
simulator, hang or crash, and it may be installed only for the actors' interpreter. So another process describes the options:
`python -m actors.envs.foreign.options ENV_ID` prints the description.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from actors.config import EnvConfig
from actors.envs.base import builtin_name, find_family
from actors.errors import EnvError
from transport.names import FIXED

COMMAND = (sys.executable, "-m", "actors.envs.foreign.options")
DESCRIBE_SECONDS = 120.0  # importing a simulator takes seconds, on a busy machine many
PLAIN: dict[str, Any] = {"bool": bool, "int": int, "float": float, "str": str, "any": Any}
NOT_OPTIONS = frozenset(["self", "render_mode", *EnvConfig.__struct_fields__])  # parameters of these names are not options
BOUNDS = ("ge", "gt", "le", "lt")


class Option(Struct, frozen=True, omit_defaults=True):
    """One option as data: a field of a struct in a form that fits JSON."""

    name: str
    kind: Literal["bool", "int", "float", "str", "any"] = "any"
    choices: tuple[str, ...] = ()
    many: bool = False  # a list of values
    required: bool = False
    default: Any = None
    description: str = ""
    bounds: dict[str, float] = {}
    fixed: bool = True  # a resumed run must keep it
    annotated: bool = True  # False: its default alone says the kind, so that with an int any number may be meant


class Description(Struct, frozen=True):
    """The output of the other process: the options, or one line that says why they cannot be described."""

    options: tuple[Option, ...] = ()
    error: str = ""


def options_type(env_id: str, command: Sequence[str] = COMMAND, environment: Mapping[str, str] | None = None) -> type[Struct]:
    """The struct of an environment's options, without importing its module in this process.

    `command` runs this module, in the environment variables `environment` (None: this process's); both can name another
    interpreter. Raises EnvError.
    """
    if builtin_name(env_id):
        return find_family(env_id).Options
    return _ask(env_id, tuple(command), None if environment is None else tuple(environment.items()))


def describe(options: type[Struct]) -> tuple[Option, ...]:
    """The fields of a struct as data."""
    described = []
    for field in msgspec.structs.fields(options):
        described.append(_option(field.name, field.type, default_of(field), field.required))
    return tuple(described)


def struct_of(name: str, options: Iterable[Option]) -> type[Struct]:
    """Makes the struct that `options` describe. Converted to builtins it leaves out fields that have their default."""
    return msgspec.defstruct(
        name, [_field(option) for option in options], frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
    )


def signature_options(call: Callable[..., Any], defaults: Mapping[str, Any], more: Iterable[Option] = ()) -> type[Struct]:
    """A struct of the keyword arguments of `call`; `defaults` replace those of its signature. `more` options are added, unless an
    argument has their name."""
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # written in C
        parameters = []
    hinted = hints(call)
    options = []
    for parameter in parameters:
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if by_name and parameter.name not in NOT_OPTIONS:
            default = defaults.get(parameter.name, parameter.default)
            option = _option(parameter.name, hinted.get(parameter.name, Any), default, default is parameter.empty)
            options.append(msgspec.structs.replace(option, fixed=True))
    options += [option for option in more if option.name not in {own.name for own in options}]
    return struct_of(getattr(call, "__name__", "Options"), options)


def missing_option(env_id: str, options: type[Struct], given: Collection[str]) -> str:
    """The message about a required option that is not in `given`; empty if there is none."""
    needed = [field.name for field in msgspec.structs.fields(options) if field.required and field.name not in given]
    return f"{env_id} needs --env.{needed[0].replace('_', '-')}" if needed else ""


def non_default(options: Struct) -> dict[str, Any]:
    """The options that differ from their defaults, by name."""
    fields = msgspec.structs.fields(options)
    values = {field.name: getattr(options, field.name) for field in fields}
    return {field.name: values[field.name] for field in fields if field.required or values[field.name] != default_of(field)}


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    """The default of a field that is not required."""
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def _option(name: str, annotation: Any, default: Any, required: bool) -> Option:
    """The option of a field or parameter. Its kind is that of the annotation, or of the default where that is not plain."""
    kind, metas = annotation, list[Any]()
    if typing.get_origin(kind) is Annotated:
        kind, *metas = typing.get_args(kind)
    meta = next((one for one in metas if isinstance(one, Meta)), Meta())
    about: dict[str, Any] = {
        "required": required,
        "default": None if required else _data(default),
        "description": meta.description or "",
        "bounds": {bound: value for bound in BOUNDS if (value := getattr(meta, bound)) is not None},
        "fixed": bool((meta.extra or {}).get("fixed")),
    }
    if typing.get_origin(kind) in (typing.Union, UnionType):  # X | None
        kinds = [one for one in typing.get_args(kind) if one is not NoneType]
        kind = kinds[0] if len(kinds) == 1 else Any
    many = typing.get_origin(kind) in (list, tuple)
    if many:
        kind = next(iter(typing.get_args(kind)), Any)
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    if choices and all(isinstance(choice, str) for choice in choices):
        return Option(name, "str", choices, many, **about)
    of_default = type(default) if not many else None
    annotated: Any = next((word for word, plain in PLAIN.items() if kind is plain and kind is not Any), None)
    named: Any = annotated or next((word for word, plain in PLAIN.items() if of_default is plain), "any")
    return Option(name, named, (), many, annotated=annotated is not None, **about)


def _field(option: Option) -> Any:
    """(name, type, default) for msgspec.defstruct."""
    kind: Any = Literal[option.choices] if option.choices else PLAIN[option.kind]  # type: ignore[valid-type]
    if option.kind == "int" and not option.annotated:
        kind = int | float
    limits: dict[str, Any] = {name: PLAIN[option.kind](bound) for name, bound in option.bounds.items()}
    about: dict[str, Any] = {"description": option.description, "extra": FIXED if option.fixed else {}}
    if option.many:
        one = Annotated[kind, Meta(**limits)] if limits else kind
        kind, limits = tuple[one, ...], {}  # type: ignore[valid-type]
    if not option.required and option.default is None:
        kind = typing.Union[kind, None]  # noqa: UP007  # a Literal made of values has no |
    kind = Annotated[kind, Meta(**limits, **about)]
    if option.required:
        return option.name, kind
    default = tuple(option.default) if option.many and option.default is not None else option.default
    return option.name, kind, msgspec.field(default_factory=lambda: default) if isinstance(default, dict | list) else default


def _data(default: Any) -> Any:
    """A default in the form of JSON. None if JSON cannot express it: an option that has its default is not passed on."""
    try:
        data = msgspec.json.decode(msgspec.json.encode(default))
    except (TypeError, ValueError, msgspec.MsgspecError):
        return None
    return data if data == default or (isinstance(default, tuple) and tuple(data) == default) else None  # not with an infinity


def hints(call: Callable[..., Any]) -> dict[str, Any]:
    target = call.__init__ if isinstance(call, type) else call  # type: ignore[misc]
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:  # an annotation may use a name that only a type checker imports
        return {}


@cache
def _ask(env_id: str, command: tuple[str, ...], environment: tuple[tuple[str, str], ...] | None) -> type[Struct]:
    """Runs the other process and makes the struct. Raises EnvError."""
    try:
        done = subprocess.run(
            [*command, env_id],
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DESCRIBE_SECONDS,
        )
        answer = msgspec.json.decode((done.stdout.splitlines() or [""])[-1], type=Description)
    except subprocess.TimeoutExpired:
        raise EnvError(f"{env_id}: importing it to read its options took more than {DESCRIBE_SECONDS:.0f} s") from None
    except msgspec.DecodeError:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise EnvError(f"{env_id}: importing it to read its options failed: {last[:300]}") from None
    if answer.error:
        raise EnvError(answer.error)
    return struct_of("Options", answer.options)


def _describe_for_parent(env_id: str) -> Description:
    try:
        return Description(describe(find_family(env_id).options_type(env_id)))
    except EnvError as error:
        return Description(error=str(error))
    except Exception as error:  # a user's module may raise anything; report it in one line
        return Description(error=f"{env_id}: {type(error).__name__}: {' '.join(str(error).split())}")


if __name__ == "__main__":
    printed = msgspec.json.encode(_describe_for_parent(sys.argv[1])).decode()
    print(f"\n{printed}", flush=True)  # on its own line, even if the module has printed without a newline
    os._exit(0)  # do not wait for a simulator's threads and exit handlers
