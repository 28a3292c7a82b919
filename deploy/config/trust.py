"""Configurations that name code, and where they may come from; actors/trust.py says what that means."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from actors import trust
from actors.trust import FLAG, Found, described, from_elsewhere, mark_path
from deploy.config import files
from deploy.config.files import Layer, Tree
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from transport.files.writing import remove, replace, write_atomically
from transport.run_dir import RunDir


@cache
def code_keys() -> frozenset[str]:
    """The keys of a run's configuration that are declared to name code."""
    return frozenset(trust.code_keys(RunConfig))


def code_in(values: Tree) -> Found:
    """The settings in the tables of a configuration that name code which is not built in. Imports nothing."""
    return trust.code_in(values, code_keys())


def read_file(path: Path, trusted: bool) -> Layer:
    """A user's configuration file. Raises ConfigError, also where it names code and is not to be `trusted`."""
    layer = files.read_file(path)
    if not trusted:
        check_file(layer.values, path)
    return layer


def read_run(run: RunDir, trusted: bool) -> Layer:
    """A run's config.toml. Raises ConfigError, also where it names code and is not to be `trusted`."""
    layer = files.read_run(run.config)
    if not trusted:
        check_run(layer.values, run.config, run)
    return layer


def check_file(values: Tree, path: Path, remedy: str = f"give it on the command line, or add {FLAG}") -> None:
    """Raises ConfigError where a file names code, unless it is the config.toml of a run that this account has made."""
    named, run = code_in(values), RunDir(path.parent)
    if path.name == run.config.name:
        named = from_elsewhere(run, named)
    refuse(named, path, f"{remedy} if you trust the file")


def check_run(values: Tree, path: Path, run: RunDir, remedy: str = f"add {FLAG}") -> None:
    """Raises ConfigError where `path`, a file of the run, names code, unless this account has made the run on this machine."""
    named = from_elsewhere(run, code_in(values))
    refuse(named, path, f"this account has not made the run on this machine; {remedy} if you trust it")


def check_exported(values: Tree, path: Path, remedy: str = "pass trust=True") -> None:
    """Raises ConfigError where an exported policy names code."""
    refuse(code_in(values), path, f"{remedy} if you trust the file")


def mark(run: RunDir, values: Tree) -> None:
    """Remembers that this account has made the run and that it names this code. Raises OSError."""
    named = code_in(values)
    if not named:
        forget(run)
        return
    path = mark_path(run)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.encode(named))


def moved(run: RunDir, target: RunDir) -> None:
    """The folder of `run` is that of `target` now."""
    with suppress(OSError):
        replace(mark_path(run), mark_path(target))


def forget(run: RunDir) -> None:
    """The folder of the run is gone."""
    with suppress(OSError):
        remove(mark_path(run))


def refuse(named: Found, path: Path, advice: str) -> None:
    """Raises ConfigError where `path` has settings that name code: `named`."""
    if named:
        raise ConfigError(f"{described(named, path)}: {advice}")
