"""Settings that name code, and where they may come from.

Such a setting is `package.module:Name`, or a program. What it names is run with all rights of the user. It is therefore taken
from the command line, from a Python call, and from runs that this account has made on this machine. In any other file it is
refused, unless the user says that the file is trusted. The marks of the account's own runs lie outside the runs' folders, so
that a folder from elsewhere cannot bring one along.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from actors.envs.base import is_foreign
from deploy.config import files
from deploy.config.files import Layer, Tree
from deploy.config.run import ConfigError, RunConfig
from transport.names import CODE
from transport.run_dir import RunDir, write_atomically

FLAG = "--trust-config"
OPEN_SECTIONS = ("env", "algorithm")  # their options belong to what they name, so any of them may name code
REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
Found = dict[str, list[str]]  # the code that each setting names


def code_keys(kind: type[Struct], prefix: str = "") -> list[str]:
    """The keys of a configuration whose values name code, as their structs declare it with Meta(extra=CODE)."""
    keys = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, Struct):
            keys += code_keys(hint, f"{prefix}{name}.")
        elif any(isinstance(part, Meta) and (part.extra or {}).items() >= CODE.items() for part in get_args(hint)):
            keys.append(prefix + name)
    return keys


def code_in(values: Tree) -> Found:
    """The settings in the tables of a configuration that name code which is not built in. Imports nothing."""
    marked, found = code_keys(RunConfig), Found()
    for path, value in _leaves(values):
        section = path.partition(".")[0]
        texts = [text for text in (value if isinstance(value, list | tuple) else [value]) if isinstance(text, str)]
        if path == "env.id":
            named = [text for text in texts if is_foreign(text)]
        elif path == "deploy.actor_python":
            named = [text for text in texts if text]
        elif path in marked:
            named = [text for text in texts if ":" in text]
        else:
            named = [text for text in texts if section in OPEN_SECTIONS and REFERENCE.fullmatch(text)]
        if named:
            found[path] = named
    return found


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


def check_file(values: Tree, path: Path) -> None:
    """Raises ConfigError where a file names code, unless it is the config.toml of a run that this account has made."""
    named, run = code_in(values), RunDir(path.parent)
    if path.name != run.config.name or not _is_marked(run, named):
        _refuse(named, path, f"give it on the command line, or add {FLAG} if you trust the file")


def check_run(values: Tree, path: Path, run: RunDir, remedy: str = f"add {FLAG}") -> None:
    """Raises ConfigError where `path`, a file of the run, names code, unless this account has made the run on this machine."""
    named = code_in(values)
    if named and not _is_marked(run, named):
        _refuse(named, path, f"this account has not made the run on this machine; {remedy} if you trust it")


def check_exported(values: Tree, path: Path) -> None:
    """Raises ConfigError where an exported policy names code."""
    _refuse(code_in(values), path, "pass trust=True if you trust the file")


def mark(run: RunDir, values: Tree) -> None:
    """Remembers that this account has made the run and that it names this code. Raises OSError."""
    named = code_in(values)
    path = _mark_path(run)
    if not named:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.encode(named))


def moved(run: RunDir, target: RunDir) -> None:
    """The folder of `run` is that of `target` now."""
    with suppress(OSError):
        _mark_path(run).rename(_mark_path(target))


def forget(run: RunDir) -> None:
    """The folder of the run is gone."""
    with suppress(OSError):
        _mark_path(run).unlink()


def _refuse(named: Found, path: Path, advice: str) -> None:
    for key, values in named.items():
        raise ConfigError(f"{path}: {key} = {', '.join(values)} names code that would be run: {advice}")


def _is_marked(run: RunDir, named: Found) -> bool:
    try:
        known = msgspec.json.decode(_mark_path(run).read_bytes(), type=Found)
    except (OSError, msgspec.DecodeError):
        return False
    return all(known.get(key) == values for key, values in named.items())


def _mark_path(run: RunDir) -> Path:
    place = hashlib.sha256(os.fsencode(run.path.resolve())).hexdigest()[:32]
    return state_folder() / "own-runs" / f"{place}.json"


def state_folder() -> Path:
    """Where Headrace keeps what this account is to find again."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    else:
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "headrace"


def _leaves(values: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
