"""The fenced blocks of the documentation, and what each is for.

An HTML comment on the line before a block says what a test does with it:

    <!-- file NAME -->  the text is written to NAME in the page's working directory
    <!-- run -->        its commands (lines that begin with "$ ") are run by `make test`
    <!-- run 2 -->      the same, and they end with this status
    <!-- check -->      its commands are run by `make docs-check`, which takes longer
    <!-- show -->       it is only shown

Commands share a working directory, one for each page, and run in the order of the page. Lines that follow a command are what it
prints: in a block that is run each of them must appear, "…" standing for anything. Blocks of text need no comment.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([ROOT / "README.md", *(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)])
FENCE = re.compile(r"(?:^<!-- *(?P<mark>[^>]*?) *-->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
FREE = ("", "text")
KNOWN = ("file", "run", "check", "show")


class Command(NamedTuple):
    """One command, its words, and the lines that it is shown to print."""

    words: list[str]
    printed: list[str]


class Block(NamedTuple):
    """A fenced block: `argument` is a file's name, or the status that commands end with."""

    use: Literal["file", "run", "check", "show"]
    argument: str
    text: str
    line: int

    def commands(self) -> list[Command]:
        found: list[Command] = []
        for line in self.text.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                found.append(Command(shlex.split(line[2:], comments=True), []))
            elif found and line.strip():
                found[-1].printed.append(line)
        return found


def blocks(text: str) -> Iterator[Block]:
    """Every block that a test has to know of. Raises ValueError for one that says nothing of its use."""
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        use, _, argument = (found["mark"] or "").partition(" ")
        if use not in KNOWN:
            if found["language"] in FREE:
                continue
            raise ValueError(f"line {line}: say what this block is for: {', '.join(f'<!-- {known} -->' for known in KNOWN)}")
        yield Block(use, argument, found["text"], line)  # type: ignore[arg-type]


def matches(shown: str, printed: str) -> bool:
    """Whether a line as shown appears in what was printed; runs of blanks are equal."""
    pattern = ".*".join(r"\s+".join(map(re.escape, part.split())) for part in shown.split("…"))
    return any(re.search(pattern, " ".join(line.split())) for line in printed.splitlines())
