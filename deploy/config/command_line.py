"""The words after a command: parsed into options, every mistake one line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Struct

from actors.trust import FLAG
from deploy.config import trust
from deploy.config.algorithm import having
from deploy.config.files import Tree, lookup
from deploy.config.run import RunConfig
from deploy.config.values import Text, any_value, split_message
from deploy.errors import ConfigError
from transport.files import renamed
from transport.names import nearest
from transport.run_dir import RunDir

S = TypeVar("S", bound=Struct)
NAMES_ELSEWHERE = {  # the name in other programs -> the flag
    "lr": "--learner.learning-rate",
    "learning_rate": "--learner.learning-rate",
    "batch_size": "--learner.batch-size",
    "max_grad_norm": "--learner.max-grad-norm",
    "buffer_size": "--replay.capacity",
    "learning_starts": "--replay.min-size",
    "n_envs": "--actors.envs-per-actor",
    "num_envs": "--actors.envs-per-actor",
    "workers": "--actors",
    "num_workers": "--actors",
    "total_timesteps": "--total-steps",
    "timesteps": "--total-steps",
    "env_id": "--env",
    "algorithm": "--algo",
    "name": "--run",
}
NEGATIVE_NUMBER = re.compile(r"-(\d|\.\d|inf$)")


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, whose errors are ConfigErrors of one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        # Until Python 3.14 argparse takes -1e3, -1_000 and -inf for flags.
        self._negative_number_matcher = NEGATIVE_NUMBER

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


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
            raise ConfigError(_unknown(text.partition("=")[0], known))
    if unknown:
        raise ConfigError(f"unexpected {unknown[0]!r}; see `headrace {command} --help`")
    return options


def _unknown(flag: str, known: set[str]) -> str:
    """The message about a flag that a command does not have."""
    key = flag.removeprefix("--").replace("-", "_")
    if new := renamed.new_name(key):
        return f"{flag} is called --{new.replace('_', '-')} now"
    if advice := renamed.removed(key):
        return f"{flag} is gone: {advice}"
    if key.startswith("algorithm.") and (owners := having(key.removeprefix("algorithm."))):
        return f"{flag}: {owners}; choose it with --algo"
    section, _, name = flag.removeprefix("--").partition(".")
    if name and "--env" in known and get_close_matches(section, ("env",)):  # its options are known when the environment is
        return f"unknown option {flag}; did you mean --env.{name}?"
    meant = NAMES_ELSEWHERE.get(key.rpartition(".")[2])
    return f"unknown option {flag}; " + (f"did you mean {meant}?" if meant in known else nearest(flag, known))


def normalised(arguments: Sequence[str]) -> list[str]:
    """Flags with dashes, however they were typed; values stay as they are."""
    result = []
    for text in arguments:
        flag, equals, value = text.partition("=")
        result.append(flag.replace("_", "-") + equals + value if flag.startswith("--") else text)
    return result


def _split(arguments: Sequence[str], known: set[str]) -> tuple[list[str], dict[str, Any]]:
    """Takes `--env.X VALUE` out where X is no flag of the command, and `--section.table.NAME VALUE` where a flag of the command
    ends in .NAME. Gives the rest, and {"env.X": VALUE}."""
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
        others[flag.removeprefix("--").replace("-", "_")] = any_value(value) if entry else Text(value)
    return rest, others


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


def read_fields(options: argparse.Namespace, kind: type[S], **more: Any) -> S:
    """The struct whose fields were typed as `--name`; `more` are fields that are no flags. Raises ConfigError."""
    names = kind.__struct_fields__
    typed = {name: value for name, value in vars(options).items() if name in names and value is not None}
    try:
        return msgspec.convert(typed | more, kind)
    except msgspec.ValidationError as error:
        text, key = split_message(error)
        name = key.partition("[")[0]
        raise ConfigError(f"--{name.replace('_', '-')}: {text}, got {typed.get(name)!r}") from error


def typed_algorithm(arguments: Sequence[str], find_run: Callable[[str], RunDir]) -> str:
    """The algorithm that a command line means, looked for before it is parsed: the options to parse are this algorithm's.

    By --algo, the file of --config, or the stopped run of --run, in this order; nothing where none of these names one.
    Raises ConfigError.
    """
    looked_for = Parser(add_help=False)
    looked_for.add_argument("--algo", "--algorithm.name", dest="algo")
    looked_for.add_argument("--config", type=Path)
    looked_for.add_argument("--run")
    looked_for.add_argument(FLAG, dest="trusted", action="store_true")
    found, _ = looked_for.parse_known_args([text for text in normalised(arguments) if text not in ("-h", "--help")])
    if found.algo:
        return str(found.algo)
    layers = [trust.read_file(found.config, found.trusted)] if found.config else []
    if found.run and (run := find_run(found.run)).config.is_file():
        layers.append(trust.read_run(run, found.trusted))
    return next((str(name) for layer in layers if (name := lookup(layer.values, "algorithm.name"))), "")
