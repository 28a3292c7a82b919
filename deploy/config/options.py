"""Command-line options made from the configuration's own fields: name, type, bounds and help are written once, there."""

from __future__ import annotations

import argparse
import tomllib
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo

from actors.config import ActorsConfig, EnvConfig
from actors.envs.base import builtin_families
from deploy.config import renamed
from deploy.config.algorithm import builtin_algorithms, find
from deploy.config.errors import ConfigError
from deploy.config.files import Tree, lookup, read_file, read_run
from deploy.config.run import RunConfig
from deploy.config.values import BYTES, COUNT, DURATION, NUMBER, SWITCH
from learner.algorithms.base import ALGORITHMS, DEFAULT
from transport.names import nearest

SEEN_BY_THE_NETWORK = ("stack", "quantise", "chunk_length", "preflight_seconds")  # of env: these make another spec
SHORT = {
    "env.id": "--env",
    "algorithm.name": "--algo",
    "actors.count": "--actors",
    "actors.envs_per_actor": "--envs-per-actor",
    "learner.device": "--device",
    "deploy.sinks": "--sinks",
}


class Text(str):
    """The value of a flag that was typed, of a type that is known later."""


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors, for the caller to print."""

    def __init__(self, **options: Any) -> None:
        """No abbreviations: a flag that is not known is an error."""
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError(message.removeprefix("argument "))


def add_config_options(parser: argparse.ArgumentParser, algorithm: str = "") -> None:
    """Adds `--section.field` for every field of a run; the most used also under a short name.

    With the name of an `algorithm` its options are added, without one those of all built-in algorithms. Raises ConfigError.
    """
    general = parser.add_argument_group("run")
    for entry in msgspec.structs.fields(RunConfig):
        kind = _plain(entry.type)
        if entry.name == "algorithm":
            _add_algorithms(parser, algorithm)
        elif isinstance(kind, type) and issubclass(kind, Struct):
            group = parser.add_argument_group(entry.name, (kind.__doc__ or "").split("\n")[0])
            for inner in msgspec.structs.fields(kind):
                if inner.name != "options":
                    _add(group, f"{entry.name}.{inner.name}", inner)
            if entry.name == "env":
                _add_families(parser)
        else:
            _add(general, entry.name, entry)


def add_env_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--env.field` for what may be otherwise than it was in training."""
    group = parser.add_argument_group("env", "another task than that of training, for the same policy; default: as in the run")
    for inner in msgspec.structs.fields(EnvConfig):
        if inner.name not in (*SEEN_BY_THE_NETWORK, "options"):
            _add(group, f"env.{inner.name}", inner, "the run's")
    _add_families(parser, "the run's")


def add_options_of(parser: argparse.ArgumentParser, env_id: str, options: type[Struct]) -> None:
    """Adds the options of one environment, for its help."""
    group = parser.add_argument_group(f"env {env_id}")
    for field in msgspec.structs.fields(options):
        _add_text(group, f"env.{field.name}", [("", field)], "needed" if field.required else "")


def _add_families(parser: argparse.ArgumentParser, default: str = "") -> None:
    """One group for each built-in family; an option that several have comes once. Which type it has is known with --env."""
    having: dict[str, list[tuple[str, FieldInfo]]] = {}
    families = builtin_families()
    for name, family in families.items():
        for field in msgspec.structs.fields(family.Options):
            having.setdefault(field.name, []).append((name, field))
    groups: dict[str, argparse._ArgumentGroup] = {}
    for field_name, owners in having.items():
        first = owners[0][0]
        if first not in groups:
            about = (families[first].Options.__doc__ or "").split("\n")[0]
            groups[first] = parser.add_argument_group(f"env {first}", about)
        _add_text(groups[first], f"env.{field_name}", owners, default)


def _add_text(group: argparse._ArgumentGroup, path: str, owners: list[tuple[str, FieldInfo]], default: str) -> None:
    """Adds a flag whose value is read when its environment is known."""
    told = [(name, _about(field), default or _shown(field.default)) for name, field in owners]
    each = [f"{name}: {about} (default: {value})" for name, about, value in told] if len(told) > 1 else []
    text = "; ".join(each) or f"{told[0][1]} (default: {told[0][2]})"
    kind = _plain(owners[0][1].type)
    options: dict[str, Any] = {"nargs": "?", "const": Text("true")} if kind is bool else {}
    metavar = reader(path, kind, _choices(owners))[1]
    group.add_argument(
        "--" + path.replace("_", "-"), dest=path, type=Text, metavar=metavar, help=text.replace("%", "%%"), **options
    )


def add_precision(parser: argparse.ArgumentParser) -> None:
    """Adds `--actors.precision`, in which a policy may act otherwise than in training."""
    field = next(field for field in msgspec.structs.fields(ActorsConfig) if field.name == "precision")
    _add(parser.add_argument_group("actors"), "actors.precision", field, "float32")


def _add_algorithms(parser: argparse.ArgumentParser, chosen: str) -> None:
    """One group per algorithm; an option that several have is listed once, with the default of each."""
    found = {chosen: find({"algorithm": {"name": chosen}})} if chosen else builtin_algorithms()
    kinds = {name: algorithm.Config for name, algorithm in found.items()}
    about = "" if chosen else "which algorithm; the options of each follow, and those that several have are listed once"
    group = parser.add_argument_group("algorithm", about)
    text = f"{', '.join(ALGORITHMS)}, or package.module:Name; default: the preset's, else {DEFAULT}"
    group.add_argument("--algo", "--algorithm.name", dest="algorithm.name", default=None, metavar="NAME", help=text)
    having: dict[str, list[tuple[str, FieldInfo]]] = {}
    for name, kind in kinds.items():
        for field in msgspec.structs.fields(kind):
            having.setdefault(field.name, []).append((name, field))
    groups: dict[str, argparse._ArgumentGroup] = {}
    for field_name, owners in having.items():
        first = owners[0][0]
        if first not in groups:
            groups[first] = parser.add_argument_group(f"algorithm {first}", (kinds[first].__doc__ or "").split("\n")[0])
        defaults = {name: _shown(field.default) for name, field in owners}
        one = len(set(defaults.values())) == 1
        text = next(iter(defaults.values())) if one else ", ".join(f"{name} {value}" for name, value in defaults.items())
        _add(groups[first], f"algorithm.{field_name}", owners[0][1], text, _choices(owners))


def _choices(owners: list[tuple[str, FieldInfo]]) -> tuple[str, ...]:
    """The values of a literal, those of all algorithms that have it."""
    kinds = [_plain(field.type) for _, field in owners]
    return tuple(dict.fromkeys(v for kind in kinds if typing.get_origin(kind) is typing.Literal for v in typing.get_args(kind)))


def _plain(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def option_lines(options: type[Struct]) -> list[str]:
    """A line for each option of an environment."""
    fields = msgspec.structs.fields(options)
    return [f"--env.{field.name.replace('_', '-'):<11} {_about(field)} (default: {_shown(field.default)})" for field in fields]


def _about(entry: FieldInfo) -> str:
    return next((meta.description for meta in typing.get_args(entry.type)[1:] if isinstance(meta, Meta)), None) or ""


def _add(group: argparse._ArgumentGroup, path: str, entry: FieldInfo, default: str = "", choices: tuple[str, ...] = ()) -> None:
    kind = _plain(entry.type)
    text = f"{_about(entry)} (default: {default or _shown(entry.default)})".replace("%", "%%")
    if typing.get_origin(kind) is dict:  # _split() takes its entries, --section.field.NAME VALUE, out
        about = f"{_about(entry)} (default: none)".replace("%", "%%")
        group.add_argument(f"--{path.replace('_', '-')}.NAME", dest=f"{path}.NAME", default=None, metavar="VALUE", help=about)
        return
    read, metavar = reader(path, kind, choices)
    options: dict[str, Any] = {"nargs": "?", "const": True} if kind is bool else {}
    names = [SHORT[path]] if path in SHORT else []
    group.add_argument(*names, "--" + path.replace("_", "-"), dest=path, type=read, metavar=metavar, help=text, **options)


def reader(path: str, kind: Any, choices: tuple[str, ...] = ()) -> tuple[Callable[[str], Any], str]:
    """What makes a value of this type of a text, as an argparse type, and the word for it in the help."""
    kind = _plain(kind)
    if typing.get_origin(kind) in (typing.Union, UnionType):  # X | None
        kind = _plain(typing.get_args(kind)[0])
    if typing.get_origin(kind) is tuple:
        read, metavar = reader(path, typing.get_args(kind)[0])
        return lambda text: [read(part) for part in text.split(",") if part], f"{metavar},…"
    if typing.get_origin(kind) is typing.Literal:
        values = choices or typing.get_args(kind)
        return _choice(values), "{" + ",".join(filter(None, values)) + "}"
    if kind is bool:
        return SWITCH, "true|false"
    if kind in (int, float) and path.endswith("_seconds"):
        return DURATION, "TIME"
    if kind in (int, float) and path.endswith("_bytes"):
        return BYTES, "BYTES"
    known: dict[Any, tuple[Callable[[str], Any], str]] = {int: (COUNT, "N"), float: (NUMBER, "X"), Any: (_any_value, "VALUE")}
    return known.get(kind, (str, "TEXT"))


def _any_value(text: str) -> Any:
    """What TOML would read, or the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def read_text(path: str, kind: Any, text: str) -> Any:
    """The value of a flag whose type was not known when it was parsed. Raises ConfigError."""
    try:
        return reader(path, kind)[0](text)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"--{path.replace('_', '-')}: {error}") from None


def _choice(known: Sequence[str]) -> Callable[[str], str]:
    """An argparse type that takes one of a few words."""

    def convert(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is none of them; {nearest(text, filter(None, known))}")
        return text

    return convert


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, tuple | dict):
        return ",".join(map(str, value or ())) or "none"
    if isinstance(value, str):
        return value or "empty"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else repr(value)


def given(options: argparse.Namespace) -> Tree:
    """The configuration keys that were typed, as a tree."""
    tree: Tree = {}
    names = {entry.name for entry in msgspec.structs.fields(RunConfig)}
    for path, value in vars(options).items():
        *sections, name = path.split(".")
        if value is None or (sections or [name])[0] not in names:
            continue
        table = tree
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = value
    return tree


def normalised(arguments: Sequence[str]) -> list[str]:
    """Flags with dashes, however they were typed; values stay as they are."""
    result = []
    for text in arguments:
        flag, equals, value = text.partition("=")
        result.append(flag.replace("_", "-") + equals + value if flag.startswith("--") else text)
    return result


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str], command: str) -> argparse.Namespace:
    """Parses the words after a command; an unknown flag is a ConfigError that names the nearest one.

    Where a command takes options of environments, it takes any: which there are is known when the environment is.
    """
    known = {flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")}
    arguments, others = _split(normalised(arguments), known)
    options, unknown = parser.parse_known_args(arguments)
    vars(options).update(others)
    for text in unknown:
        if text.startswith("-"):
            flag = text.partition("=")[0]
            if new := renamed.new_name(flag.removeprefix("--")):
                raise ConfigError(f"{flag} is called --{new.replace('_', '-')} now")
            raise ConfigError(f"unknown option {flag}; {nearest(flag, known)}")
    if unknown:
        raise ConfigError(f"unexpected {unknown[0]!r}; see `headrace {command} --help`")
    return options


def typed_algorithm(arguments: Sequence[str], settings_of_run: Callable[[str], Path]) -> str:
    """The algorithm that a command line means, looked for before it is parsed: the options to parse are this algorithm's.

    By --algo, else by the file of --config, else by the stopped run of --run; nothing where none of these names one.
    Raises ConfigError.
    """
    looked_for = Parser(add_help=False)
    looked_for.add_argument("--algo", "--algorithm.name", dest="algo")
    looked_for.add_argument("--config", type=Path)
    looked_for.add_argument("--run")
    found, _ = looked_for.parse_known_args([text for text in normalised(arguments) if text not in ("-h", "--help")])
    if found.algo:
        return str(found.algo)
    layers = [read_file(found.config)] if found.config else []
    if found.run and (settings := settings_of_run(found.run)).is_file():
        layers.append(read_run(settings))
    return next((str(name) for layer in layers if (name := lookup(layer.values, "algorithm.name"))), "")


def _split(arguments: Sequence[str], known: set[str]) -> tuple[list[str], dict[str, Any]]:
    """Takes `--env.X VALUE` out where X is no flag of the command, and `--section.table.NAME VALUE` where a flag of the command
    ends in .NAME: the rest, and {"env.X": VALUE}."""
    tables = tuple(flag.removesuffix("NAME") for flag in known if flag.endswith(".NAME"))
    rest, others = list[str](), dict[str, Any]()
    words = list(arguments)
    while words:
        flag, equals, value = words[0].partition("=")
        entry = flag.startswith(tables) and not flag.endswith(".")
        if not entry and ("--env" not in known or not flag.startswith("--env.") or flag in known):
            rest.append(words.pop(0))
            continue
        words.pop(0)
        if not equals:
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
        others[flag.removeprefix("--").replace("-", "_")] = _any_value(value) if entry else Text(value)
    return rest, others
