"""The faults of a list, and where each fits a tree."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

LAYERS = ("transport", "replay", "learner", "actors", "deploy", "headrace")
FOLDER = Path(__file__).parent
LISTS = {"faults": FOLDER / "faults.toml", "mends": FOLDER / "mends.toml"}


class Change(NamedTuple):
    """Replaces the first `old` in the text of `function` by `new`."""

    function: str
    old: str
    new: str


class Fault(NamedTuple):
    name: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]


def read_faults(path: Path) -> list[Fault]:
    document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return [
        Fault(fault["name"], tuple(Change(**change) for change in fault["change"]), tuple(fault["tests"]))
        for fault in document["fault"]
    ]


def place(root: Path, fault: Fault) -> tuple[Path, str] | None:
    """The file that the fault changes, and its text with the fault in it; None where it fits nowhere."""
    sources = _sources(root, LAYERS)
    for change in fault.changes:
        for file, source in sources.items():
            if (mutant := changed(source, change)) is not None:
                return file, mutant
        holding = [file for file, source in sources.items() for _ in range(source.count(change.old))]
        if len(holding) == 1:
            return holding[0], sources[holding[0]].replace(change.old, change.new)
    return None


@cache
def _sources(root: Path, folders: tuple[str, ...]) -> Mapping[Path, str]:
    """The text of every module, as it is before any fault is in it."""
    return {file: file.read_text(encoding="utf-8") for folder in folders for file in sorted((root / folder).rglob("*.py"))}


def changed(source: str, change: Change) -> str | None:
    """The source with the change in it; None where it does not fit."""
    if f"def {change.function.rpartition('.')[2]}" not in source or change.old not in source:
        return None
    lines = source.splitlines(keepends=True)
    for name, node in _functions(ast.parse(source)):
        text = "".join(lines[node.lineno - 1 : node.end_lineno])
        if name == change.function and change.old in text:
            return "".join([*lines[: node.lineno - 1], text.replace(change.old, change.new, 1), *lines[node.end_lineno :]])
    return None


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """By qualified name: `Class.method` or `function`."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{inner.name}", inner) for inner in node.body if isinstance(inner, ast.FunctionDef))


def test_ids(root: Path, names: tuple[str, ...]) -> list[str]:
    """What pytest is to run, from the root, for these names of files, or of a test in a file: test_runs.py::test_a_lock."""
    found = (
        f"{file.relative_to(root)}{separator}{test}"
        for name, separator, test in (name.partition("::") for name in names)
        for file, source in _sources(root, ("tests",)).items()
        if file.match(name) and (not test or f"def {test}(" in source)
    )
    return list(dict.fromkeys(found))
