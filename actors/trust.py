"""Settings that name code, and where they may come from.

Such a setting is `package.module:Name`, or a program. What it names is run with all rights of the user. It is therefore taken
from the command line, from a Python call, and from runs that this account has made on this machine. In any other file it is
refused, unless the user says that the file is trusted. The marks of the account's own runs lie outside the runs' folders, so
that a folder from elsewhere cannot bring one along.

deploy/config/trust.py asks about whole configurations, `check` about the settings of a process that is started by hand.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

from msgspec import Meta, Struct

from actors.config import ActorProcess, EnvConfig
from actors.envs.base import is_foreign
from transport.files.documents import Damaged, read_document
from transport.names import CODE, Named
from transport.run_dir import RunDir

FLAG = "--trust-config"
OPEN_SECTIONS = ("env", "algorithm")  # their options belong to what they name, so any of them may name code
REFERENCE = re.compile(r"[^:/\\]+:[^\W\d][\w.]*")  # a module's name may be any file's name, not only an identifier
Found = dict[str, list[str]]  # the code that each setting names


class UntrustedSettings(ValueError):
    """Settings that name code, of a run from elsewhere; one line."""


def code_keys(kind: type[Struct], prefix: str = "") -> list[str]:
    """The keys of a configuration whose values name code, as their structs declare it with Meta(extra=CODE)."""
    keys = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, Struct):
            keys += code_keys(hint, f"{prefix}{name}.")
        elif any(isinstance(part, Meta) and (part.extra or {}).items() >= CODE.items() for part in get_args(hint)):
            keys.append(prefix + name)
    return keys


def code_in(values: dict[str, Any], marked: Collection[str]) -> Found:
    """The settings in the tables of a configuration that name code which is not built in. `marked`: the keys that are declared
    to name code. Imports nothing."""
    found = Found()
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


def check(process: ActorProcess, path: Path, run: RunDir) -> None:
    """Raises UntrustedSettings where `process`, which was read from `path` in the run's folder, names code and this account has
    not made the run on this machine."""
    named = from_elsewhere(run, code_of(process))
    if named:
        setting = described(named, path)
        raise UntrustedSettings(f"{setting}: this account has not made the run on this machine; add {FLAG} if you trust it")


def code_of(process: ActorProcess) -> Found:
    """The settings of an actor that name code which is not built in. Imports nothing."""
    marked = {*code_keys(EnvConfig, "env."), *code_keys(Named, "algorithm.")}
    return code_in({"env": process.env, "algorithm": process.algorithm}, marked)


def described(named: Found, path: Path) -> str:
    """The first setting of `path` that names code, for the beginning of a message."""
    key, values = next(iter(named.items()))
    return f"{path}: {key} = {', '.join(values)} names code that would be run"


def from_elsewhere(run: RunDir, named: Found) -> Found:
    """The entries of `named` that this account's record of the run lacks; all of them if there is no record."""
    if not named:
        return named
    try:
        known = read_document(mark_path(run), Found)
    except (OSError, Damaged):
        known = Found()
    return {key: values for key, values in named.items() if known.get(key) != values}


def mark_path(run: RunDir) -> Path:
    """The mark of a run of this account's own. Raises FileNotFoundError for an account without a home."""
    place = hashlib.sha256(os.fsencode(run.path)).hexdigest()[:32]
    return state_folder() / "own-runs" / f"{place}.json"


def state_folder() -> Path:
    """The folder of what Headrace remembers for this account. Raises FileNotFoundError for an account without a home."""
    variable, below = ("LOCALAPPDATA", "AppData/Local") if sys.platform == "win32" else ("XDG_STATE_HOME", ".local/state")
    try:
        return Path(os.environ.get(variable) or Path.home() / below) / "headrace"
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "this account has no home folder") from None


def _leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
