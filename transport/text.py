"""How lines, lists, amounts, and the progress of long work are shown to people."""

from __future__ import annotations

import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")  # ECMA-48: colours, titles …
REPORT_SECONDS = 5.0
NEAR_SECONDS = 600.0

T = TypeVar("T")


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


class ProgressReport:
    """Estimates by the pace since it was made."""

    def __init__(self, total: float, every_seconds: float = REPORT_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        """`total`: what there is to do, in any unit. A report is due `every_seconds`."""
        self._total, self._every_seconds, self._clock = total, every_seconds, clock
        self._began = self._reported = clock()

    @property
    def due(self) -> bool:
        """True when a report is due, which counts as given."""
        if self._clock() < self._reported + self._every_seconds:
            return False
        self._reported = self._clock()
        return True

    def left(self, done: float) -> str:
        """The end of a line, such as ", about 40 s left"; empty while nothing is done, and when all is."""
        if not 0 < done < self._total:
            return ""
        seconds = (self._clock() - self._began) * (self._total - done) / done
        return f", about {duration(max(seconds, 1.0))} left"


def reported(
    items: Sequence[T], what: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Iterator[T]:
    """The items, with a line every few seconds: "what: 12 of 80, about 40 s left"."""
    progress = ProgressReport(len(items), clock=clock)
    for done, item in enumerate(items):
        if progress.due:
            say(f"{what}: {done:,} of {len(items):,}{progress.left(done)}")
        yield item


def duration(seconds: float) -> str:
    """90 s, 12 min, 3 h 05 min."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def moment_text(at: float, now: float) -> str:
    """A time to come, in seconds since 1970: 07:00, with seconds where it is near, with the date where it is a day away."""
    form = "%H:%M:%S" if at % 60 >= 1 and at < now + NEAR_SECONDS else "%H:%M"
    return time.strftime(form if at < now + 86400 else f"%Y-%m-%d {form}", time.localtime(at))
