"""How many steps each actor may take, so that a run ends at its total_steps: reports come too seldom to stop it in time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from transport.messages.control import Progress

LEAST_SHARE = 0.005  # of the total, for all actors together: more than is left, so that no run ends in many tiny portions


@dataclass
class _Actor:
    """One incarnation of an actor. Figures count from its start."""

    incarnation: int
    acknowledged: int = 0
    limit: int = 0
    held: int = 0  # the highest limit under which it may still act


class Allowances:
    """Divides what is left of a run among its actors, anew at each report. What one does not use goes to the others."""

    def __init__(self, total: int, before: int) -> None:
        """`before`: steps of the run until now."""
        self._total, self._gone = total, before
        self._actors: dict[str, _Actor] = {}

    def renewed(self, progress: Progress, collected: int, present: Collection[str]) -> int:
        """The limit of an actor that reports. `collected`: steps of the run. `present`: the names of all actors at work."""
        for name, actor in list(self._actors.items()):
            if name not in present or (name == progress.name and actor.incarnation != progress.incarnation):
                self._gone += self._actors.pop(name).acknowledged
        own = self._actors.setdefault(progress.name, _Actor(progress.incarnation))
        own.acknowledged = progress.steps
        actors = max(len(present), 1)
        # An actor may know more than the last report of replay says.
        left = self._total - max(collected, self._gone + sum(each.acknowledged for each in self._actors.values()))
        others = sum(max(each.held - each.acknowledged, 0) for each in self._actors.values() if each is not own)
        least = max(int(LEAST_SHARE * self._total) // actors, 1)
        limit = own.acknowledged + max(min(-(-left // actors), left - others), least)
        own.held, own.limit = max(own.limit, limit), limit  # it reads the new one only after this report
        return limit
