"""How lines, lists and amounts are shown to people."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Sequence

ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")  # ECMA-48: colours, titles …


def plain(text: str) -> str:
    """A line as a terminal may show it: without escape sequences, and only what stands behind the last carriage return, as a
    progress bar shows itself. Any other character that is not printable is written as its number: \\x07."""
    if text.isprintable():
        return text
    text = ESCAPE.sub("", text).rstrip().rpartition("\r")[2]
    return "".join(map(_shown, text))


def say(line: str) -> None:
    """Prints a whole line in one write, so that lines of several processes never mix; without escape sequences, because what a
    simulator raises may be in it."""
    sys.stdout.write(plain(line) + "\n")
    sys.stdout.flush()


def listed(names: Sequence[str]) -> str:
    """The names; of a long list the first ten, and how many more there are."""
    return ", ".join(names) if len(names) < 12 else f"{', '.join(names[:10])} and {len(names) - 10} more"


def amount(value: float) -> str:
    """A score or return as text; it may be thousands (pixels) or hundredths (metres)."""
    if abs(value) >= 10 or value == 0:
        return f"{value:,.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def _shown(letter: str) -> str:
    if letter.isprintable():
        return letter
    if letter == "\t" or unicodedata.category(letter) == "Zs":
        return " "
    return letter.encode("unicode_escape").decode()
