"""Turns a class or function into the name by which other processes import it, and a run's name into its folder."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from headrace.errors import ConfigurationError


def reference(thing: object, kind: str) -> str:
    """`module:qualname` of a class or a function; a string is returned unchanged. `kind` begins the error message.

    Raises ConfigurationError for objects that another process cannot import: a lambda, a local function, a class of a notebook or
    of the running script.
    """
    if isinstance(thing, str):
        return thing
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not callable(thing) or not isinstance(module, str) or not isinstance(name, str):
        advice = ", or take serial=True" if hasattr(thing, "step") else ""  # an environment
        raise ConfigurationError(f"{kind}: give a name, a class or a function, not {type(thing).__name__}{advice}")
    if "<lambda>" in name:
        advice = "write it as a function into a file of its own, or take serial=True"
        raise ConfigurationError(f"{kind}: other processes cannot import a lambda; {advice}")
    advice = f"put {name.rpartition('.')[2]} into a file of its own and import it from there, or take serial=True"
    if module in ("__main__", "__mp_main__"):
        raise ConfigurationError(f"{kind}: other processes cannot import {name} from a notebook or a running script; {advice}")
    if "<locals>" in name:
        raise ConfigurationError(f"{kind}: other processes cannot import {name}, which is inside a function; {advice}")
    found: object = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found != thing:  # not `is`: each access to a class method gives another object
        raise ConfigurationError(f"{kind}: {module}:{name} is another object than the one given; {advice}")
    return f"{module}:{name}"


def run_folder(name: str | os.PathLike[str]) -> Path:
    """The folder of a run, given its folder or name. Raises ConfigurationError if there is no such run."""
    path = Path(name)
    found = path if (path / "config.toml").is_file() or len(path.parts) != 1 else Path("runs") / path
    if not (found / "config.toml").is_file():
        raise ConfigurationError(f"there is no run in {found} (no config.toml)")
    return found.resolve()
