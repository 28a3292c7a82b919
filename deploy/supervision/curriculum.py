"""How hard the tasks are that actors set themselves: raised when they mostly succeed, remembered beside the checkpoints."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from transport.metrics import Record
from transport.run_dir import write_atomically

PROMOTION = 0.9  # success rate at a level that leads to the next
EPISODES = 200  # after so many it is judged; without promotion, half of what was counted is forgotten


class Curriculum:
    """The level of a run, from what its actors say of the episodes that they began at it.

    An actor's record has `levels`, `level` and the counts `level_episodes` and `level_successes` since it was set to it; one
    whose environment has no levels has none of them.
    """

    def __init__(self, path: Path) -> None:
        """Goes on where the file says that the run was."""
        self._path = path
        self.level = 0
        self.levels = 0  # not known before an actor says so
        with suppress(OSError, ValueError, KeyError, TypeError):  # no file, or none that can be read: it begins anew
            self.level = max(int(json.loads(path.read_text())["level"]), 0)
        self._begin()

    def _begin(self) -> None:
        self._counted: dict[str, tuple[float, float]] = {}
        self._episodes = self._successes = 0.0

    def figures(self) -> dict[str, float | None]:
        """For status and charts: levels count from 1."""
        return {"level": self.level + 1, "levels": self.levels, "success_rate": self.success_rate}

    @property
    def success_rate(self) -> float | None:
        """Lately, at this level; None before there was an episode."""
        return self._successes / self._episodes if self._episodes else None

    def heard(self, name: str, record: Record) -> str:
        """Takes in an actor's record. Gives what there is to tell when the level rises, otherwise nothing."""
        if not record.get("levels"):
            return ""
        self.levels = int(record["levels"])
        self.level = min(self.level, self.levels - 1)
        if record.get("level") != self.level:
            return ""  # it has not heard yet
        now = record.get("level_episodes", 0.0), record.get("level_successes", 0.0)
        before = self._counted.get(name, (0.0, 0.0))
        if now[0] < before[0]:  # another life of the same actor
            before = (0.0, 0.0)
        self._counted[name] = now
        self._episodes += now[0] - before[0]
        self._successes += now[1] - before[1]
        return self._judge() if self._episodes >= EPISODES else ""

    def _judge(self) -> str:
        rate, episodes = self._successes / self._episodes, self._episodes
        if rate < PROMOTION or self.level + 1 >= self.levels:
            self._episodes, self._successes = self._episodes / 2, self._successes / 2
            return ""
        self.level += 1
        self._begin()
        with suppress(OSError):  # on a full disk a restart takes the level before
            write_atomically(self._path, json.dumps({"level": self.level, "levels": self.levels}).encode())
        return f"curriculum: level {self.level + 1} of {self.levels} after success in {rate:.0%} of {episodes:,.0f} episodes"
