"""How far something has come that takes longer than a few seconds, and when it will be over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

REPORT_SECONDS = 5.0

T = TypeVar("T")


class Progress:
    """Estimates by the pace since it was made."""

    def __init__(self, total: float, every_seconds: float = REPORT_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        """`total`: what there is to do, in any unit. A report is due `every_seconds`."""
        self._total, self._every_seconds, self._clock = total, every_seconds, clock
        self._began = self._reported = clock()

    @property
    def due(self) -> bool:
        """Whether it is time for a report, which counts as given."""
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
    progress = Progress(len(items), clock=clock)
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
