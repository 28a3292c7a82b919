"""Resolves names at the extension points: the short name of a built-in, or `package.module:Name` from any package."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

PACKAGES = ("transport", "replay", "learner", "actors", "deploy", "headrace")
FIXED = {"fixed": True}  # Meta(extra=FIXED): an option that a resumed run must keep
RARE = {"rare": True}  # Meta(extra=RARE): an option that hardly anybody sets: not in the help
CODE = {"code": True}  # Meta(extra=CODE): an option that may name code, or a program, to run


class Named(msgspec.Struct, frozen=True):
    """The name of an implementation and its options. In files and flags, name and options are in one flat table."""

    name: Annotated[str, msgspec.Meta(extra=CODE)]
    options: Any  # an instance of the implementation's options struct

    def flat(self) -> dict[str, Any]:
        """The table for files: `name` and the options side by side."""
        table: dict[str, Any] = msgspec.to_builtins(self.options)
        return {"name": self.name, **table}


class UnknownName(ValueError):
    """A name that cannot be resolved; the text says why, and what to write instead, in one line."""


def find(name: str, builtin: Mapping[str, str], kind: str, related: Mapping[str, str] | None = None) -> Any:
    """Imports the object that `name` refers to.

    `builtin` maps short names to `package.module:Name`; `kind` is the word for messages, such as "algorithm"; `related` maps
    names that are not built in to the built-in one that serves the same purpose. The working directory is searched too. Raises
    UnknownName.
    """
    module_name, _, attribute = builtin.get(name, name).partition(":")
    if not attribute:
        near = (related or {}).get(name.lower())
        hint = f"the nearest to it is {near}" if near else nearest(name, builtin)
        own = "" if hint.endswith("?") else "; write package.module:Name for your own"
        raise UnknownName(f"no {kind} is called {name!r}; {hint}{own}")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            place = f"in {os.getcwd()} or among the installed packages"
            raise UnknownName(f"{kind} {name}: there is no module {error.name} {place}") from error
        raise UnknownName(f"{kind} {name}: {module_name} needs {error.name}, which is not installed") from error
    except Exception as error:
        reason, hidden = " ".join(str(error).split()) or type(error).__name__, hidden_module()
        raise UnknownName(
            f"{kind} {name}: {module_name} cannot be imported: {reason}{f'; {hidden}' if hidden else ''}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UnknownName(f"{kind} {name}: {module_name} has no {attribute}; {nearest(part, public(found))}")
        found = getattr(found, part)
    return found


def hidden_module() -> str:
    """A sentence about a module of the working directory that a package of Headrace hides; empty if there is none."""
    here, own = Path.cwd(), Path(__file__).parents[1]
    hidden = [name for name in PACKAGES if (here / f"{name}.py").is_file() or (here / name / "__init__.py").is_file()]
    if not hidden or here == own:
        return ""
    return f"{hidden[0]} in this folder is hidden by Headrace's own package `{hidden[0]}`: give it another name"


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the most similar known word, or a list of all."""
    names = sorted(known)
    lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), lower, 1, 0.5)
    if close:
        return f"did you mean {lower[close[0]]}?"
    return "there is none" if not names else "known: " + ", ".join(names[:20]) + (", …" if len(names) > 20 else "")


def public(module: object) -> list[str]:
    return [name for name in dir(module) if not name.startswith("_")]
