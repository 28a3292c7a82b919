"""Command-line options made from the fields of structs: name, type, bounds, default and help are written once, there."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo

from actors.config import ActorsConfig, EnvConfig
from actors.envs.base import builtin_families, builtin_name
from actors.envs.foreign.options import default_of
from deploy.config.algorithm import builtin_algorithms, find
from deploy.config.checks import is_marked
from deploy.config.environment import foreign_options
from deploy.config.run import RunConfig
from deploy.config.values import Text, plain, reader
from deploy.errors import ConfigError
from learner.algorithms.base import ALGORITHMS, SUITED, SUITED_GOALS, SUITED_IMAGES
from transport.names import RARE, nearest

SEEN_BY_THE_NETWORK = ("stack", "quantise", "chunk_length", "preflight_seconds")  # of env: these make another spec
ENV_FLAGS = ("--env", "--env.id", "--check")
SHORT = {
    "env.id": "--env",
    "algorithm.name": "--algo",
    "actors.count": "--actors",
    "actors.envs_per_actor": "--envs-per-actor",
    "learner.device": "--device",
    "deploy.on": "--on",
    "deploy.sinks": "--sinks",
    "deploy.track": "--track",
    "deploy.callbacks": "--callbacks",
}
USUAL = {  # in the short help of `headrace up`; a text replaces that of the whole help
    "env.id": "mario, robot, snake, a Gymnasium id such as CartPole-v1, or package.module:Name of your own (default: mario)",
    "algorithm.name": f"{', '.join(ALGORITHMS)}, or package.module:Name of your own (default: what suits the environment)",
    "actors.count": "actor processes (default: one for every two cores, 2 to 16)",
    "learner.device": "auto, cpu, cuda, cuda:1, directml, xpu or mps (default: auto)",
    "learner.batch_size": "transitions in a batch, or steps in a rollout batch (default: the algorithm's)",
    "learner.learning_rate": "of Adam (default: the algorithm's)",
    "run": "name of the run; a stopped run of this name is resumed (default: ENV-ALGORITHM)",
    "seed": "of environments, exploration, sampling and initial weights (default: 1)",
    "total_steps": "environment steps after which the run ends (default: never)",
    "stop_after": "time after which it ends: 90s, 5m or 2h; --stop-at 07:00 goes by the clock (default: never)",
    "config": "",
    "fresh": "",
    "detach": "",
    "web": "",
}
HELP = ("-h", "--help")
METAVARS = {"env.id": "ENV", "env.urdf": "FILE", "learner.weights": "FILE", "weights": "FILE", "video": "FILE"}
Target = argparse.ArgumentParser | argparse._ArgumentGroup


class Owner(NamedTuple):
    """A field, and which algorithm or environment it is an option of."""

    name: str
    field: FieldInfo


def add_config_options(parser: argparse.ArgumentParser, algorithm: str = "", env_id: str = "") -> None:
    """Adds `--section.field` for every field of a run; the most used also under a short name.

    With the name of an `algorithm` its options are added, without one those of all built-in algorithms; likewise with the id of
    an environment that is not built in. Raises ConfigError.
    """
    general = parser.add_argument_group("run")
    for entry in msgspec.structs.fields(RunConfig):
        kind = plain(entry.type)
        if entry.name == "algorithm":
            _add_algorithms(parser, algorithm)
        elif isinstance(kind, type) and issubclass(kind, Struct):
            group = parser.add_argument_group(entry.name, first_line(kind))
            for inner in msgspec.structs.fields(kind):
                if inner.name != "options":
                    add_field(group, f"{entry.name}.{inner.name}", inner)
            if entry.name == "env":
                _add_families(parser, env_id)
        else:
            add_field(general, entry.name, entry)


def add_env_options(parser: argparse.ArgumentParser, env_id: str = "") -> None:
    """Adds `--env.field` for what may differ from the environment of training."""
    group = parser.add_argument_group("env", "Another task for the same policy; what is left out is as in the run.")
    for inner in msgspec.structs.fields(EnvConfig):
        if inner.name not in (*SEEN_BY_THE_NETWORK, "options"):
            add_field(group, f"env.{inner.name}", inner, "the run's")
    _add_families(parser, env_id, "the run's")


def add_checked_env(parser: argparse.ArgumentParser, env_id: str = "") -> None:
    """Adds `--check ENV`, and `--env.field`."""
    text = "make this environment, step it, and print what an agent sees and does"
    parser.add_argument("--check", "--env", dest="env.id", metavar="ENV", help=text)
    add_env_section(parser, env_id)


def add_env_section(parser: argparse.ArgumentParser, env_id: str = "") -> None:
    """Adds `--env.field` for every field of the section but its id, and of the built-in environments."""
    group = parser.add_argument_group("env", first_line(EnvConfig))
    for field in msgspec.structs.fields(EnvConfig):
        if field.name not in ("id", "options"):
            add_field(group, f"env.{field.name}", field)
    _add_families(parser, env_id)


def described_env(typed: Sequence[str]) -> str:
    """The environment whose options a help shows in place of those of the built-in families; empty where it shows these."""
    env_id = typed_env(typed) if set(HELP) & set(typed) else ""
    return "" if builtin_name(env_id) else env_id


def shorten_help(parser: argparse.ArgumentParser, typed: Sequence[str], algorithm: str) -> None:
    """Hides the parts of a long help that are not asked for. Raises ConfigError for a word after --help that is no section.

    `--help` shows what most people use, and the options of the `algorithm` and the environment that are typed; `--help SECTION`
    shows a section, `--help all` everything.
    """
    place = next((place for place, word in enumerate(typed) if word in HELP), None)
    topic = next((word for word in typed[place + 1 : place + 2] if not word.startswith("-")), "") if place is not None else "all"
    groups = {group: (group.title or "").replace(",", "").split() for group in parser._action_groups if group._group_actions}
    sections = tuple(dict.fromkeys(words[0] for words in groups.values() if words[0] != "options"))
    if topic not in ("", *sections, "all"):
        raise ConfigError(f"--help {topic}: there is no such section; {nearest(topic, (*sections, 'all'))}")
    if topic == "all":
        return
    env_id = typed_env(typed)
    named = {builtin_name(env_id) or env_id, algorithm} - {""}
    shown = {group for group, (section, *owners) in groups.items() if topic == section or (not topic and named & {*owners})}
    parser._action_groups = [group for group in parser._action_groups if group in shown]
    if topic:
        return
    usual = parser.add_argument_group("most used")
    parser._action_groups.insert(0, parser._action_groups.pop())
    actions = {action.dest: action for group in groups for action in group._group_actions}
    for name, text in USUAL.items():
        action = actions[name]
        action.option_strings, action.help = action.option_strings[:1], text or action.help
        usual._group_actions.append(action)
    parser.epilog = (
        f"`headrace up --help all` shows every flag, `headrace up --help SECTION` those of one section:\n{', '.join(sections)}."
    )


def typed_env(typed: Sequence[str]) -> str:
    """The environment that a command line names; nothing where it names none."""
    ids = [text.partition("=")[2] for text in typed if text.startswith(tuple(f"{flag}=" for flag in ENV_FLAGS))]
    ids += [value for flag, value in pairwise(typed) if flag in ENV_FLAGS]
    return ids[-1] if ids else ""


def add_precision(parser: argparse.ArgumentParser) -> None:
    """Adds `--actors.precision`, in which a policy may act otherwise than in training."""
    field = next(field for field in msgspec.structs.fields(ActorsConfig) if field.name == "precision")
    add_field(parser.add_argument_group("actors"), "actors.precision", field, "float32")


def add_fields(target: Target, kind: type[Struct], names: Sequence[str] = ()) -> None:
    """Adds `--name` for fields of a struct, those of `names` or all."""
    for field in msgspec.structs.fields(kind):
        if names and field.name not in names:
            continue
        if plain(field.type) is bool:  # a word after it is the command's next argument
            target.add_argument(f"--{field.name}", dest=field.name, action="store_const", const=True, help=about(field))
        else:
            add_field(target, field.name, field)


def add_field(
    target: Target, path: str, field: FieldInfo, default: str = "", choices: Sequence[str] = (), text: str = ""
) -> None:
    """Adds the option of one field; `default`, `choices` and `text` replace what the field says."""
    kind, text = plain(field.type), text or f"{about(field)} (default: {default or shown(field.default, path)})"
    flag, text = f"--{path.replace('_', '-')}", argparse.SUPPRESS if is_marked(field, RARE) else text.replace("%", "%%")
    if typing.get_origin(kind) is dict:  # command_line.py takes its entries, --section.field.NAME VALUE, out before parsing
        target.add_argument(f"{flag}.NAME", dest=f"{path}.NAME", default=None, metavar="VALUE", help=about(field))
        return
    names = [SHORT[path], flag] if path in SHORT else [flag]
    read, metavar = reader(path, kind, choices)
    metavar = METAVARS.get(path, metavar)
    more: dict[str, Any] = {"nargs": "?", "const": True} if kind is bool else {}
    target.add_argument(*names, dest=path, type=read, metavar=metavar, help=text, **more)


def _add_text(group: argparse._ArgumentGroup, path: str, owners: Sequence[Owner], default: str = "") -> None:
    """Adds a flag whose value is read when its environment is known."""
    kind = plain(owners[0].field.type)
    more: dict[str, Any] = {"nargs": "?", "const": Text("true")} if kind is bool else {}
    metavar = METAVARS.get(path) or reader(path, kind, _choices(owners))[1]
    text = argparse.SUPPRESS if is_marked(owners[0].field, RARE) else _help(owners, default).replace("%", "%%")
    group.add_argument("--" + path.replace("_", "-"), dest=path, type=Text, metavar=metavar, help=text, **more)


def _add_families(parser: argparse.ArgumentParser, env_id: str, default: str = "") -> None:
    found = {env_id: foreign_options(env_id)} if env_id else {name: kind.Options for name, kind in builtin_families().items()}
    for group, name, owners in _grouped(parser, "env", found):
        _add_text(group, f"env.{name}", owners, default)


def _add_algorithms(parser: argparse.ArgumentParser, chosen: str) -> None:
    found = {chosen: find({"algorithm": {"name": chosen}})} if chosen else builtin_algorithms()
    discrete = f"{SUITED['categorical']} for discrete actions, {SUITED_IMAGES['categorical']} for those from images"
    continuous = f"{SUITED['continuous']} for continuous ones, {SUITED_GOALS['continuous']} for those with goals"
    suited = f"the preset's; without one {discrete}, {continuous}"
    text = f"algorithm: {', '.join(ALGORITHMS)}, or package.module:Name for your own (default: {suited})"
    more = "" if chosen else "The groups below list the options of each algorithm; an option of several is listed once."
    named = parser.add_argument_group("algorithm", more)
    named.add_argument("--algo", "--algorithm.name", dest="algorithm.name", default=None, metavar="NAME", help=text)
    for group, name, owners in _grouped(parser, "algorithm", {name: kind.Config for name, kind in found.items()}):
        add_field(group, f"algorithm.{name}", owners[0].field, "", _choices(owners), _help(owners))


def _grouped(
    parser: argparse.ArgumentParser, section: str, kinds: Mapping[str, type[Struct]]
) -> Iterable[tuple[argparse._ArgumentGroup, str, list[Owner]]]:
    """Every option of several structs once, in a group of the help for those that have it."""
    having: dict[str, list[Owner]] = {}
    for name, kind in kinds.items():
        for field in msgspec.structs.fields(kind):
            having.setdefault(field.name, []).append(Owner(name, field))
    groups: dict[tuple[str, ...], argparse._ArgumentGroup] = {}
    for field_name, owners in having.items():
        names = tuple(owner.name for owner in owners)
        if names not in groups:
            more = first_line(kinds[names[0]]) if len(names) == 1 else ""
            groups[names] = parser.add_argument_group(f"{section} {', '.join(names)}", more)
        yield groups[names], field_name, owners


def _help(owners: Sequence[Owner], default: str = "") -> str:
    """One text for an option that several have, with what differs between them."""
    texts = {owner.name: about(owner.field) for owner in owners}
    values = {owner.name: default or shown(default_of(owner.field), owner.field.name) for owner in owners}
    if len(set(texts.values())) > 1:
        return "; ".join(f"{name}: {text} (default: {values[name]})" for name, text in texts.items())
    same = len(set(values.values())) == 1
    listed = next(iter(values.values())) if same else ", ".join(f"{name} {value}" for name, value in values.items())
    text = next(iter(texts.values()))
    return f"{text} ({'required' if listed == REQUIRED else f'default: {listed}'})".strip()


def _choices(owners: Sequence[Owner]) -> tuple[str, ...]:
    """The values of a literal, those of all that have the option."""
    kinds = [plain(owner.field.type) for owner in owners]
    return tuple(dict.fromkeys(v for kind in kinds if typing.get_origin(kind) is typing.Literal for v in typing.get_args(kind)))


def option_lines(options: type[Struct]) -> list[str]:
    """A line for each option of an environment."""
    fields = msgspec.structs.fields(options)
    return [
        f"--env.{field.name.replace('_', '-'):<11} {about(field)} (default: {shown(field.default, field.name)})"
        for field in fields
    ]


def about(field: FieldInfo) -> str:
    return next((meta.description for meta in typing.get_args(field.type)[1:] if isinstance(meta, Meta)), None) or ""


def first_line(kind: type[Struct]) -> str:
    return (kind.__doc__ or "").partition("\n")[0]


REQUIRED = "required"


def shown(value: Any, path: str) -> str:
    """The default of an option as the user would type it."""
    if value is msgspec.NODEFAULT:
        return REQUIRED
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, tuple | list | dict):
        return ",".join(map(str, value or ())) or "none"
    if isinstance(value, str):
        return value or "empty"
    if path.endswith("_seconds"):
        return f"{value:g}s"
    if path.endswith("_bytes") and value:
        return f"{value / 1e9:g}GB" if value >= 1e9 else f"{value / 1e6:g}MB"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"
