"""Configuration files: a user's, a run's own, and the presets. Each is read into a layer of keys."""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from actors.envs.make import env_section, without_foreign_options
from deploy.config.run import DeployConfig, RunConfig
from deploy.errors import ConfigError
from transport.files import renamed
from transport.files.documents import read_bytes

Tree = dict[str, Any]
FLAGS = "command line"  # the origin of what was typed
PRESETS = Path(__file__).parent / "presets"
ABSOLUTE = re.compile(r"^(?:[/~\\]|[A-Za-z]:[\\/])")  # a path of this machine, which may hold a user's name


@dataclass(frozen=True)
class Layer:
    """Some keys and where they come from; those of `on_gpu` win when the learner has an accelerator."""

    origin: str
    values: Tree
    on_gpu: Tree = field(default_factory=dict)


def read_toml(path: Path, own: bool = False) -> Tree:
    """A user's file, or one of a run's `own`. Raises ConfigError naming the file and the place."""
    try:
        return tomllib.loads(_piped(path, path.stat().st_ino) if path.is_fifo() and not own else _text(read_bytes(path)))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also a number of too many digits, and too many brackets
        raise ConfigError(f"{path} is not TOML: {error}") from error


@cache
def _piped(path: Path, inode: int) -> str:
    """A pipe, such as `--config <(program)`, gives its content once; a command reads its file several times."""
    return _text(path.read_bytes())


def _text(data: bytes) -> str:
    return data.decode("utf-8-sig")  # some editors on Windows begin a file with a BOM


def read_file(path: Path) -> Layer:
    """A user's settings, or a copy of a run's config.toml. Raises ConfigError."""
    values = read_toml(path)
    return _migrated(path, values) if "format" in values else Layer(str(path), values)


def read_run(path: Path) -> Layer:
    """A run's own config.toml. Raises ConfigError."""
    return _migrated(path, read_toml(path, own=True))


def _migrated(path: Path, values: Tree) -> Layer:
    """A configuration that a run has written, perhaps one of an older version. Raises ConfigError."""
    number = values.pop("format", 1)
    _check_format(path, number)
    values = renamed.migrated(values, number)
    if number < renamed.RENAMED_IN and isinstance(values.get("env"), dict):
        values["env"] = without_foreign_options(values["env"])
    return Layer(str(path), values)


def read_deploy(path: Path) -> DeployConfig:
    """The deploy section of a run's config.toml; nothing that other sections name is imported. Raises ConfigError."""
    try:
        return msgspec.convert(read_run(path).values.get("deploy", {}), DeployConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error


def _check_format(path: Path, number: object) -> None:
    if not isinstance(number, int) or number < 1:
        raise ConfigError(f"{path}: format must be a whole number, not {number!r}")
    if number > renamed.FORMAT:
        raise ConfigError(
            f"{path} was written by a newer version of Headrace (format {number}, this one reads up to {renamed.FORMAT}): "
            "use that version, or another --run"
        )


def as_tree(config: RunConfig) -> Tree:
    """The configuration as tables: the options of a named thing beside its name."""
    tree: Tree = msgspec.to_builtins(config)
    return tree | {"env": env_section(config.env), "algorithm": config.algorithm.flat()}


def write_config(config: RunConfig) -> bytes:
    """The resolved configuration as TOML."""
    return tomli_w.dumps({"format": renamed.FORMAT} | as_tree(config)).encode()


def with_origins(config: RunConfig, origins: Mapping[str, str]) -> str:
    """The resolved configuration as TOML, with the origin of each setting in a comment. `origins`: by dotted key."""
    tree = as_tree(config)
    lines = [f"format = {renamed.FORMAT}"]
    lines += [_line(key, value, origins[key]) for key, value in tree.items() if not isinstance(value, dict)]
    for section, table in tree.items():
        if isinstance(table, dict):
            lines += ["", f"[{section}]"]
            for key, value in table.items():
                inner = [origins[f"{section}.{path}"] for path, _ in leaves({key: value})]
                lines.append(_line(key, value, inner[-1] if inner else "default"))
    return "\n".join(lines)


def _line(key: str, value: Any, origin: str) -> str:
    text = f"{key} = {_inline(value)}"
    return f"{text:<44} # {origin}"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return tomli_w.dumps({"x": value}).partition(" = ")[2].strip()


def named(path: str, origin: str) -> str:
    """A key as messages name it: --section.field where it was typed, FILE: section.field otherwise."""
    return "--" + path.replace("_", "-") if origin == FLAGS else f"{origin}: {path}" if origin else path


def merge(below: Tree, above: Tree) -> Tree:
    """A new tree: `above` wins, tables are merged."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def lookup(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys, such as learner.batch_size, and their values."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def without_paths(value: Any) -> Any:
    """A setting that may be published: of a path of this machine only its last part is kept."""
    if isinstance(value, str) and ABSOLUTE.match(value):
        return re.split(r"[/\\]", value.rstrip("/\\"))[-1]
    if isinstance(value, dict):
        return {key: without_paths(inner) for key, inner in value.items()}
    return [without_paths(inner) for inner in value] if isinstance(value, list | tuple) else value


def publishable(tree: Tree) -> Tree:
    """A configuration that may be published: without paths of this machine and its section deploy."""
    return {key: without_paths(value) for key, value in tree.items() if key != "deploy"}


@dataclass(frozen=True)
class Preset:
    """Settings that work well for some environments, or for an algorithm."""

    name: str
    about: str
    envs: tuple[str, ...]
    preferred: bool  # among the presets of an environment, when no algorithm is named
    preferred_with: tuple[str, ...]  # the same, before that one, where an option of one of these sections is set
    layer: Layer

    @property
    def algorithm(self) -> str:
        return str(self.layer.values.get("algorithm", {}).get("name", ""))


@cache
def presets() -> tuple[Preset, ...]:
    return tuple(read_preset(path) for path in sorted(PRESETS.glob("*.toml")))


def read_preset(path: Path) -> Preset:
    """Besides the keys of a run: `about`, `envs` (patterns), `preferred`, `preferred_with` and tables under `on_gpu`."""
    values = read_toml(path)
    about, envs, on_gpu = values.pop("about"), tuple(values.pop("envs")), values.pop("on_gpu", {})
    preferred, preferred_with = values.pop("preferred", True), tuple(values.pop("preferred_with", ()))
    return Preset(path.stem, about, envs, preferred, preferred_with, Layer(f"preset {path.stem}", values, on_gpu))


def preset_for(env_id: str, algorithm: str | None = None, sections: Collection[str] = ()) -> Preset | None:
    """The environment's preset for an algorithm. Where none is named, the one that goes with the `sections` in which options are
    set, or the preferred one. None if there is none."""
    fits = [preset for preset in presets() if any(fnmatch.fnmatchcase(env_id, pattern) for pattern in preset.envs)]
    if algorithm is not None:
        return next((preset for preset in fits if preset.algorithm in ("", algorithm)), None)
    by_sections = [preset for preset in fits if set(sections) & set(preset.preferred_with)]
    return next(iter([*by_sections, *(preset for preset in fits if preset.preferred)]), None)
