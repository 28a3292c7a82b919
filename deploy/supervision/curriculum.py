"""The difficulty of the tasks: raised when actors mostly succeed, saved beside the checkpoints."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from transport.files.documents import Damaged, read_document
from transport.files.writing import write_durably
from transport.metrics import Record

PROMOTION = 0.9  # success rate that leads to the next level
EPISODES = 200  # between two decisions; without promotion, half of the counts is dropped


class SavedLevel(Struct, frozen=True):
    """The file: the current level, and the number of levels."""

    level: Annotated[int, Meta(ge=0, le=1_000_000)]
    levels: int = 0


class Curriculum:
    """The level of a run, from the episodes that its actors began at this level.

    An actor's record has `levels`, `level`, and the counts `level_episodes` and `level_successes` since it was set to that level;
    an environment without levels has none of them.
    """

    def __init__(self, path: Path) -> None:
        """Continues with the level in the file."""
        self._path = path
        self.level = 0
        self.levels = 0  # unknown until an actor reports it
        with suppress(OSError, Damaged):  # without a readable file the first level
            self.level = read_document(path, SavedLevel).level
        self._begin()

    def _begin(self) -> None:
        self._counted: dict[str, tuple[float, float]] = {}
        self._episodes = self._successes = 0.0

    def figures(self) -> dict[str, float | None]:
        """For status and charts: levels count from 1."""
        return {"level": self.level + 1, "levels": self.levels, "success_rate": self.success_rate}

    @property
    def success_rate(self) -> float | None:
        """Success rate of recent episodes at this level; None before the first."""
        return self._successes / self._episodes if self._episodes else None

    def on_record(self, name: str, record: Record) -> str:
        """Counts an actor's episodes. Returns a line for the log when the level rises, otherwise an empty string."""
        if not record.get("levels"):
            return ""
        self.levels = int(record["levels"])
        self.level = min(self.level, self.levels - 1)
        if record.get("level") != self.level:
            return ""  # the new level has not reached it yet
        now = record.get("level_episodes", 0.0), record.get("level_successes", 0.0)
        before = self._counted.get(name, (0.0, 0.0))
        if now[0] < before[0]:  # a new incarnation of the actor
            before = (0.0, 0.0)
        self._counted[name] = now
        self._episodes += now[0] - before[0]
        self._successes += now[1] - before[1]
        return self._decide() if self._episodes >= EPISODES else ""

    def _decide(self) -> str:
        rate, episodes = self._successes / self._episodes, self._episodes
        if rate < PROMOTION or self.level + 1 >= self.levels:
            self._episodes, self._successes = self._episodes / 2, self._successes / 2
            return ""
        self.level += 1
        self._begin()
        with suppress(OSError):  # on a full disk: a restart then begins with the level before
            write_durably(self._path, json.dumps({"level": self.level, "levels": self.levels}).encode())
        return f"curriculum: level {self.level + 1} of {self.levels} after success in {rate:.0%} of {episodes:,.0f} episodes"
