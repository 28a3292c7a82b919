"""Configuration files: TOML, its format, and the layer that each file is."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from actors.envs.make import env_section, without_foreign_options
from deploy.config import renamed
from deploy.config.deploy import DeployConfig
from deploy.config.errors import ConfigError
from deploy.config.run import RunConfig

Tree = dict[str, Any]
FLAGS = "command line"


@dataclass(frozen=True)
class Layer:
    """Some keys and where they come from; `on_gpu` lies over them when the learner has an accelerator."""

    origin: str
    values: Tree
    on_gpu: Tree = field(default_factory=dict)


def read_toml(path: Path) -> Tree:
    """Raises ConfigError naming the file and the place."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def read_file(path: Path) -> Layer:
    """A user's settings, or a copy of a run's config.toml. Raises ConfigError."""
    values = read_toml(path)
    _check_format(path, values.pop("format", renamed.FORMAT))
    return Layer(str(path), values)


def read_run(path: Path) -> Layer:
    """A run's own config.toml; one of an older version is brought up to date. Raises ConfigError."""
    values = read_toml(path)
    number = values.pop("format", 1)
    _check_format(path, number)
    if number == renamed.FORMAT:
        return Layer(str(path), values)
    values = renamed.migrated(values)
    if isinstance(values.get("env"), dict):
        values["env"] = without_foreign_options(values["env"])
    return Layer(str(path), values)


def read_deploy(path: Path) -> DeployConfig:
    """The deploy section of a run's config.toml, without looking at what the others name. Raises ConfigError."""
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
