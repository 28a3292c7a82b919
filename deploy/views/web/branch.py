"""The curve of the run that a fork goes on from, which the fork's page shows behind its own."""

from __future__ import annotations

from deploy.recorded.fork_point import parent_of
from deploy.recorded.history import BREAK_SECONDS
from deploy.recorded.run import RecordedRun, at_most
from deploy.views.web.columns import Document, evaluations

SHOWN = ("seconds", "steps", "return_mean", "success_rate")


class Branch:
    """Reads the other run for as long as it goes on. Its folder may be gone, or have a new run of its name."""

    def __init__(self, fork: RecordedRun, rows: int) -> None:
        """`rows`: how many evaluations there are at most."""
        self._point, self._rows, self._seen = fork.fork, rows, -1
        self._parent = RecordedRun(parent_of(fork.run, fork.fork)) if fork.fork else None

    def news(self) -> Document | None:
        """Its evaluations from the last one before the fork on, where there are new ones; None where there are none."""
        if self._parent is None or self._point is None:
            return None
        self._parent.read(0.0)  # nothing of the actors
        began, known = self._parent.clock.first, self._point.began
        if began is None or known is None or abs(began - known) > BREAK_SECONDS or self._parent.evaluations_seen == self._seen:
            return None
        self._seen, found = self._parent.evaluations_seen, self._parent.evaluations
        before = sum(one.seconds <= self._point.seconds for one in found)
        columns = evaluations(at_most(found[max(before - 1, 0) :], self._rows), self._parent.grid)
        return {"run": self._point.run} | {name: columns[name] for name in SHOWN if None not in columns.get(name, [None])}
