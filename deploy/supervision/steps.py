"""Counts the environment steps of a run by what replay has collected, over all incarnations of replay."""

from __future__ import annotations

from transport.messages import Progress


class StepCount:
    """Steps of actors that crash, or that run on other machines, count as all others do: what arrived counts."""

    def __init__(self, before: int) -> None:
        """`before`: the steps when the run was stopped."""
        self.total = self._before = before
        self.moved = False  # whether a step has been collected since this count was made
        self._pid: int | None = None

    def heard(self, progress: Progress) -> None:
        """Takes a report of replay."""
        if progress.pid != self._pid:
            self._pid, self._before = progress.pid, self.total
        # A replay that restored experience counts from the first step of the run on; another one from its own start.
        self.total = progress.steps if progress.restored_steps else self._before + progress.steps
        self.moved |= progress.steps > progress.restored_steps
