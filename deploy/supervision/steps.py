"""Counts the environment steps of a run by what replay has collected, over all incarnations of replay."""

from __future__ import annotations

from dataclasses import dataclass

from transport.messages.control import Progress


@dataclass
class _Collected:
    """By one replay process, in all its incarnations."""

    total: int = 0
    before: int = 0  # by earlier incarnations
    incarnation: int | None = None


class StepCount:
    """Steps of actors that crash, or that run on other machines, count as all others do: what arrived counts."""

    def __init__(self, before: int, shards: int = 1) -> None:
        """`before`: the steps when the run was stopped. `shards`: the number of replay processes."""
        self.total = self._before = before
        self.moved = False  # whether a step has been collected since this count was made
        self._shards = shards
        self._collected: dict[str, _Collected] = {}
        self._restored = False  # whether any of them has restored steps

    def heard(self, progress: Progress) -> None:
        """Takes a report of replay."""
        one = self._collected.setdefault(progress.name, _Collected())
        if progress.incarnation != one.incarnation:
            one.incarnation, one.before = progress.incarnation, one.total
        # A replay that restored experience counts from the first step of the run on; another one from its own start.
        one.total = progress.steps if progress.restored_steps else one.before + progress.steps
        self._restored |= progress.restored_steps > 0
        total = sum(each.total for each in self._collected.values()) + (0 if self._restored else self._before)
        self.total = total if len(self._collected) == self._shards else max(total, self.total)
        self.moved |= progress.steps > progress.restored_steps
