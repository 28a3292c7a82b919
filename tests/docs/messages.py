"""The texts that the source can print, to compare with what the documentation quotes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tests.docs.blocks import ROOT

PACKAGES = ("transport", "replay", "learner", "actors", "deploy", "headrace")
TERM = re.compile(r"^(`.+`)[^\n]*\n:", re.MULTILINE)  # what a definition list defines


def quoted(page: str) -> list[str]:
    """The messages that a page explains: those in backquotes where a definition begins."""
    return [message for terms in TERM.findall(page) for message in re.findall(r"`([^`]+)`", terms)]


@cache
def texts(root: Path = ROOT) -> tuple[str, ...]:
    """Every string of the source, "…" where it differs from time to time."""
    found: list[ast.AST] = []  # trees are not kept: with all, the garbage collector takes longer than the parser
    constants: dict[str, str] = {}
    for path in (path for package in PACKAGES for path in (root / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants.update(_constants(tree))
        found += filter(_is_text, ast.walk(tree))
    return tuple(" ".join(_text(node, constants).split()) for node in found)


def says(message: str, known: Sequence[str]) -> bool:
    """Whether one of the known texts says this, "…" in the message standing for anything."""
    pattern = re.compile(".*".join(map(re.escape, message.split("…"))))
    return any(pattern.search(text) for text in known)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The texts that a module gives a name."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from ((target.id, node.value.value) for target in node.targets if isinstance(target, ast.Name))


def _text(node: ast.AST, constants: dict[str, str]) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value, constants) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return constants.get(node.value.id, "…") if isinstance(node.value, ast.Name) else "…"
    return str(node.value) if isinstance(node, ast.Constant) else "…"
