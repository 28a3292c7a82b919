"""Figures of a run over time, in memory that does not grow with the run."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

BREAK_SECONDS = 60.0  # without a record of replay: the run was not up
COUNT, SUM = 0, 1


class Beginning(NamedTuple):
    """What a fork goes on from: the time that the run before it had been up, and its steps."""

    seconds: float = 0.0
    steps: float = 0.0


NEW = Beginning()


class RunClock:
    """Turns a time into the seconds that the run had been up, by the records of replay.

    The time in which a run was stopped is left out, so that a run that was resumed a week later has no gap of a week. Of a run so
    long that its first records are no longer kept, the time before them is as long as replay had been up by then.
    """

    def __init__(self, begin: Beginning = NEW) -> None:
        self._begin = begin.seconds
        self._starts: list[float] = []  # of each stretch, seconds since 1970
        self._offsets: list[float] = []  # up to its start, in seconds
        # The two as arrays, and how long each stretch may be; None: the newest record is not in them.
        self._stretches: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._last = 0.0  # the newest record

    @property
    def begun(self) -> bool:
        return bool(self._starts)

    @property
    def first(self) -> float | None:
        """The time of the first record, or of the start of its process where that is longer ago; in seconds since 1970."""
        return self._starts[0] - (self._offsets[0] - self._begin) if self._starts else None

    def record(self, time: float, uptime: float = 0.0) -> None:
        """Takes the time of a record of replay, in the order of the file, and how long its process had been up."""
        if not self._starts:
            self._starts, self._offsets = [time], [self._begin + (uptime if uptime > BREAK_SECONDS else 0.0)]
        elif not 0 <= time - self._last <= BREAK_SECONDS:
            self._offsets.append(self._offsets[-1] + self._last - self._starts[-1])
            self._starts.append(time)
        self._last, self._stretches = time, None

    def seconds(self, time: float) -> float | None:
        """How long the run had been up at `time`; None long before the first record."""
        found = float(self.seconds_at(np.array([time]))[0])
        return found if math.isfinite(found) else None

    def seconds_at(self, times: np.ndarray) -> np.ndarray:
        """The same for many times; NaN long before the first record."""
        if not self._starts:
            return np.full(len(times), np.nan)
        if self._stretches is None:
            starts, offsets = np.array(self._starts), np.array(self._offsets)
            self._stretches = starts, offsets, np.append(np.diff(offsets), self._last - self._starts[-1] + BREAK_SECONDS)
        starts, offsets, longest = self._stretches
        number = np.searchsorted(starts, times, side="right") - 1
        if (np.diff(starts) < 0).any():  # the clock was set back
            number = _newest_with(times, starts, starts + longest)
        found = offsets[number] + np.minimum(times - starts[number], longest[number])
        early = np.where(self._starts[0] - times <= BREAK_SECONDS, offsets[0], np.nan)
        placed: np.ndarray = np.where(number < 0, early, found)
        return placed


def _newest_with(times: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The number of the newest stretch that has each time; where none has it, of the one that ended last before; -1 for none."""
    number, end = np.full(len(times), -1), np.full(len(times), -np.inf)
    for one in range(len(starts)):
        inside, after = (starts[one] <= times) & (times <= ends[one]), (end < ends[one]) & (ends[one] < times)
        number[inside | after] = one
        end[inside] = np.inf
        end[after] = ends[one]
    return number


class StepTotal:
    """The steps of the whole run, from the counters of its replay processes."""

    def __init__(self, begin: Beginning = NEW) -> None:
        self.steps = begin.steps
        self._earlier = begin.steps  # of processes whose experience was not restored
        self._counters: dict[str, float] = {}  # the newest of each process

    def record(self, name: str, counter: float, restored: bool, current: Collection[str]) -> None:
        """Takes the counter of a replay process. `restored`: it goes on from that of an earlier incarnation. `current`: the
        replay processes that the run has now."""
        if restored and not self._counters:  # of a fork that has the experience before it: its counters have those steps, too
            self._earlier = 0.0
        if counter < self._counters.get(name, 0.0) / 2 and not restored:  # it counts from 0
            over = [one for one in self._counters if one == name or one not in current]
            self._earlier += sum(self._counters.pop(one) for one in over)
        self._counters[name] = counter
        now = sum(value for one, value in self._counters.items() if one in current)
        self.steps = max(self.steps, self._earlier + now)  # the sum is less until each process of a resumed run has a record


class Grid:
    """The means of figures in bins of equal width. When the bins are used up each two become one, of twice the width."""

    def __init__(self, bins: int, width_seconds: float, begin: Beginning = NEW) -> None:
        """`bins` is even. The first one begins at `begin`."""
        self.begin = begin
        self.width_seconds = width_seconds
        self.used = 0
        self.merges = 0
        self.changes = 0  # calls of `add` that have changed something
        self._bins = bins
        self._places: dict[str, int] = {}  # the row of each figure in the table
        self._table = np.zeros((2, 1, bins))  # counts and sums of each figure

    @property
    def names(self) -> list[str]:
        return list(self._places)

    def add(self, names: Sequence[str], seconds: Sequence[float] | np.ndarray, values: np.ndarray) -> None:
        """Adds values [N, figures] at times [N] from the beginning on; those that are not finite are left out."""
        row, figure = np.nonzero(np.isfinite(values))
        if not len(row):
            return
        self.changes += 1
        at = np.asarray(seconds, float)[row] - self.begin.seconds
        while (latest := at.max()) >= self._bins * self.width_seconds:
            self._merge()
        places = np.zeros(len(names), int)
        for number in np.unique(figure):
            places[number] = self._place(names[number])
        # One index into the flat table: numpy adds by it several times as fast as by two.
        where = places[figure] * self._bins + (at / self.width_seconds).astype(int)
        np.add.at(self._table[COUNT].reshape(-1), where, 1.0)
        np.add.at(self._table[SUM].reshape(-1), where, values[row, figure])
        self.used = max(self.used, int(latest / self.width_seconds) + 1)

    def _place(self, name: str) -> int:
        """The row of a figure in the table; adds rows for a new figure if none is free."""
        place = self._places.setdefault(name, len(self._places))
        if place == self._table.shape[1]:
            self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
        return place

    def seconds(self, first: int = 0) -> np.ndarray:
        """The middle of each bin, from bin `first` on."""
        return self.begin.seconds + (np.arange(first, self.used) + 0.5) * self.width_seconds

    def column(self, name: str, first: int = 0) -> np.ndarray:
        """The mean in each bin from bin `first` on, NaN where nothing was added."""
        if name not in self._places:
            return np.full(max(self.used - first, 0), np.nan)
        counts, sums = self._table[:, self._places[name], first : self.used]
        with np.errstate(invalid="ignore"):
            found: np.ndarray = sums / counts
        return found

    def coarser(self, bins: int) -> Grid:
        """A copy with at most `bins` bins."""
        copied = Grid(self._bins, self.width_seconds, self.begin)
        copied.used, copied.merges, copied.changes = self.used, self.merges, self.changes
        copied._places, copied._table = dict(self._places), self._table.copy()
        while copied.used > bins:
            copied._merge()
        return copied

    def _merge(self) -> None:
        half = self._table.reshape(2, -1, self._bins // 2, 2).sum(-1)
        self._table[:] = 0
        self._table[:, :, : self._bins // 2] = half
        self.width_seconds *= 2
        self.used = (self.used + 1) // 2
        self.merges += 1


def steps_in(grid: Grid) -> np.ndarray:
    """The steps of the run in each bin, also where replay has recorded none; they never fall."""
    known = grid.column("steps")
    there = np.isfinite(known)
    if not there.any():
        return np.zeros(len(known))
    filled = np.interp(np.arange(len(known)), np.flatnonzero(there), known[there])
    found: np.ndarray = np.maximum.accumulate(np.round(filled))
    return found


def steps_at(grid: Grid, seconds: Sequence[float]) -> np.ndarray:
    """The steps of the run at each of these times."""
    begin = grid.begin
    if not grid.used:
        return np.full(len(seconds), begin.steps)
    x, y = np.concatenate([[begin.seconds], grid.seconds()]), np.concatenate([[begin.steps], steps_in(grid)])
    return np.interp(seconds, x, y)
