"""Command-line options made from the configuration's own fields: name, type, bounds and help are written once, there."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo

from actors.config import ActorsConfig, EnvConfig
from deploy.config import renamed
from deploy.config.algorithm import builtin_algorithms, find
from deploy.config.errors import ConfigError
from deploy.config.files import Tree, lookup, read_file, read_run
from deploy.config.run import RunConfig
from learner.algorithms.base import ALGORITHMS, DEFAULT
from transport.names import nearest

SEEN_BY_THE_NETWORK = ("stack", "quantise", "chunk_length", "preflight_seconds")  # of env: these make another spec
SHORT = {
    "env.id": "--env",
    "algorithm.name": "--algo",
    "actors.count": "--actors",
    "actors.envs_per_actor": "--envs-per-actor",
    "learner.device": "--device",
}
UNITS_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
UNITS_BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9}


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors, for the caller to print."""

    def __init__(self, **options: Any) -> None:
        """No abbreviations: a flag that is not known is an error."""
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError(message.removeprefix("argument "))


def whole_number(text: str) -> int:
    """12, 12_000 or 1e6."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if number != int(number):
        raise ValueError(text)
    return int(number)


def switch(text: str) -> bool:
    """true or false."""
    known = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    return known[text.lower()]


def lengths(text: str) -> list[float]:
    """0.05,0.02."""
    found = [float(part) for part in text.split(",")]
    if not all(0 < length < 100 for length in found):
        raise ValueError(text)
    return found


def _with_unit(text: str, units: dict[str, float]) -> float:
    lowered = text.lower()
    for unit in sorted(units, key=len, reverse=True):
        if lowered.endswith(unit):
            return float(lowered.removesuffix(unit)) * units[unit]
    return float(lowered)


def duration_seconds(text: str) -> float:
    """90s, 5m, 2h, or plain seconds."""
    return _with_unit(text, UNITS_SECONDS)


def number_of_bytes(text: str) -> int:
    """4e9 or 4GB."""
    return int(_with_unit(text, UNITS_BYTES))


def argument(parse: Callable[[str], Any], what: str) -> Callable[[str], Any]:
    """An argparse type whose complaint says what is expected."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, KeyError, OverflowError):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None

    return convert


COUNT = argument(whole_number, "a whole number (12, 12_000 and 1e6 are)")
NUMBER = argument(float, "a number")
DURATION = argument(duration_seconds, "a duration (90s, 5m and 2h are)")
BYTES = argument(number_of_bytes, "a number of bytes (4e9 and 4GB are)")
SWITCH = argument(switch, "true or false")
TOLERANCES = argument(lengths, "lengths in metres greater than 0, as in 0.05,0.02")


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
                _add(group, f"{entry.name}.{inner.name}", inner)
        else:
            _add(general, entry.name, entry)


def add_env_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--env.field` for what may be otherwise than it was in training."""
    group = parser.add_argument_group("env", "another task than that of training, for the same policy; default: as in the run")
    for inner in msgspec.structs.fields(EnvConfig):
        if inner.name not in SEEN_BY_THE_NETWORK:
            _add(group, f"env.{inner.name}", inner, "the run's")


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


def _add(group: argparse._ArgumentGroup, path: str, entry: FieldInfo, default: str = "", choices: tuple[str, ...] = ()) -> None:
    kind = _plain(entry.type)
    about = next((meta.description for meta in typing.get_args(entry.type)[1:] if isinstance(meta, Meta)), None) or ""
    text = f"{about} (default: {default or _shown(entry.default)})".replace("%", "%%")
    options: dict[str, Any] = {"dest": path, "default": None, "help": text}
    if typing.get_origin(kind) is typing.Literal:
        values = choices or typing.get_args(kind)
        options |= {"type": _choice(values), "metavar": "{" + ",".join(filter(None, values)) + "}"}
    elif kind is bool:
        options |= {"type": SWITCH, "metavar": "true|false", "nargs": "?", "const": True}
    elif path.endswith("_seconds"):
        options |= {"type": DURATION, "metavar": "TIME"}
    elif path.endswith("_bytes"):
        options |= {"type": BYTES, "metavar": "BYTES"}
    elif kind is int:
        options |= {"type": COUNT, "metavar": "N"}
    elif kind is float:
        options |= {"type": NUMBER, "metavar": "X"}
    else:
        options["metavar"] = "TEXT"
    names = [SHORT[path]] if path in SHORT else []
    group.add_argument(*names, "--" + path.replace("_", "-"), **options)


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
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else repr(value)


def given(options: argparse.Namespace) -> Tree:
    """The configuration keys that were typed, as a tree."""
    tree: Tree = {}
    names = {entry.name for entry in msgspec.structs.fields(RunConfig)}
    for path, value in vars(options).items():
        section, _, name = path.partition(".")
        if value is None or section not in names:
            continue
        if name:
            tree.setdefault(section, {})[name] = value
        else:
            tree[path] = value
    return tree


def normalised(arguments: Sequence[str]) -> list[str]:
    """Flags with dashes, however they were typed; values stay as they are."""
    result = []
    for text in arguments:
        flag, equals, value = text.partition("=")
        result.append(flag.replace("_", "-") + equals + value if flag.startswith("--") else text)
    return result


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str], flags_of: Callable[[str], set[str]]) -> argparse.Namespace:
    """Parses; an unknown flag is a ConfigError that names the nearest of `flags_of(command)`."""
    options, unknown = parser.parse_known_args(normalised(arguments))
    for text in unknown:
        if text.startswith("-"):
            flag = text.partition("=")[0]
            if new := renamed.new_name(flag.removeprefix("--")):
                raise ConfigError(f"{flag} is called --{new.replace('_', '-')} now")
            raise ConfigError(f"unknown option {flag}; {nearest(flag, flags_of(options.command))}")
    if unknown:
        raise ConfigError(f"unexpected {unknown[0]!r}; see `headrace {options.command} --help`")
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
