"""The environment steps of a run: how many there are, and how many more each actor may take.

They are counted by what replay has collected, over all its incarnations. Reports come too seldom to stop a run at its
total_steps, so what is left of it is divided among the actors.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from transport.messages.control import Progress

LEAST_SHARE = 0.005  # of the total, for all actors together: more than is left, so that no run ends in many tiny portions


@dataclass
class _Collected:
    """Steps collected by one replay process, in all its incarnations."""

    total: int = 0
    before: int = 0  # by earlier incarnations
    incarnation: int | None = None


class StepCount:
    """Steps of actors that crash, or that run on other machines, count as all others do: what arrived counts."""

    def __init__(self, before: int, shards: int = 1) -> None:
        """`before`: the steps when the run was stopped. `shards`: the number of replay processes."""
        self.total = self._before = before
        self.moved = False  # a step has been collected since this count was made
        self._shards = shards
        self._collected: dict[str, _Collected] = {}
        self._restored = False  # any of them has restored steps

    def on_progress(self, progress: Progress) -> None:
        """Counts a report of replay."""
        one = self._collected.setdefault(progress.name, _Collected())
        if progress.incarnation != one.incarnation:
            one.incarnation, one.before = progress.incarnation, one.total
        # A replay that restored experience counts from the first step of the run on; another one from its own start.
        one.total = progress.steps if progress.restored_steps else one.before + progress.steps
        self._restored |= progress.restored_steps > 0
        total = sum(each.total for each in self._collected.values()) + (0 if self._restored else self._before)
        self.total = total if len(self._collected) == self._shards else max(total, self.total)
        self.moved |= progress.steps > progress.restored_steps


@dataclass
class _Actor:
    """One incarnation of an actor. Figures count from its start."""

    incarnation: int
    acknowledged: int = 0
    limit: int = 0
    granted: int = 0  # the highest limit under which it may still act


class Allowances:
    """Divides what is left of a run among its actors, anew at each report. What one does not use goes to the others."""

    def __init__(self, total: int, before: int) -> None:
        """`before`: steps of the run until now."""
        self._total, self._before = total, before
        self._actors: dict[str, _Actor] = {}

    def renewed(self, progress: Progress, collected: int, present: Collection[str]) -> int:
        """The limit of an actor that reports. `collected`: steps of the run. `present`: the names of all actors at work."""
        for name, actor in list(self._actors.items()):
            if name not in present or (name == progress.name and actor.incarnation != progress.incarnation):
                self._before += self._actors.pop(name).acknowledged
        own = self._actors.setdefault(progress.name, _Actor(progress.incarnation))
        own.acknowledged = progress.steps
        actors = max(len(present), 1)
        # An actor may know more than the last report of replay says.
        left = self._total - max(collected, self._before + sum(each.acknowledged for each in self._actors.values()))
        others = sum(max(each.granted - each.acknowledged, 0) for each in self._actors.values() if each is not own)
        least = max(int(LEAST_SHARE * self._total) // actors, 1)
        limit = own.acknowledged + max(min(-(-left // actors), left - others), least)
        own.granted, own.limit = max(own.limit, limit), limit  # it reads the new one only after this report
        return limit
