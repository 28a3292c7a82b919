"""Lists the episodes in a run's log in the order in which they ended, and chooses one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from actors.datasets.base import DatasetError
from actors.datasets.runs import LoggedEpisode, RunSource
from transport.experience import PERSON
from transport.text import ProgressReport, amount


class Entry(NamedTuple):
    """An episode that the log holds in full, without its rows."""

    number: int  # in the order in which episodes ended, from 1 on
    step: int  # of the run, at which it ended; approximate
    total: float
    length: int
    version: int  # of the policy, at its last step
    cut: bool  # its actor may have ended it early: actors shorten first episodes to put environments out of step
    place: int  # its index in the episodes of its stream
    logged: LoggedEpisode

    @property
    def chosen_by(self) -> str:
        """Who chose its last action."""
        return "a person" if self.version == PERSON else f"v{self.version}"


class Episodes:
    """The complete episodes in a run's log."""

    def __init__(self, source: RunSource, steps: int, say: Callable[[str], None]) -> None:
        """Reads the whole log. `steps`: of the run so far; 0 if unknown. Raises DatasetError."""
        self._source = source
        self._streams: dict[tuple[str, int, int], list[LoggedEpisode]] = {}
        report, found = ProgressReport(1), list[Entry]()
        for logged in source.logged():
            stream, rows = self._streams.setdefault(logged.stream, []), logged.rows
            bare = logged._replace(rows={}, last={})
            if logged.terminated or logged.truncated:
                cut = logged.truncated and not logged.follows
                found.append(
                    Entry(0, 0, logged.total, len(rows["reward"]), int(rows["policy_version"][-1]), cut, len(stream), bare)
                )
            stream.append(bare)
            if report.due:
                say(f"reading the log: {len(found):,} episodes so far …")
        newest = max(steps, source.items)
        found.sort(key=lambda entry: (entry.logged.age, entry.logged.stream))
        self.entries = [
            entry._replace(number=number, step=newest - round((1 - entry.logged.age) * source.items))
            for number, entry in enumerate(found, 1)
        ]
        self.unfinished = sum(map(len, self._streams.values())) - len(found)
        self.has_seeds = any(logged.start for stream in self._streams.values() for logged in stream)
        if not found:
            raise DatasetError(f"{source.about} has no episode from its first step to its end in its log yet: let it run longer")

    def chosen(self, which: str, least_return: float | None) -> Entry:
        """`which`: a number, `best`, `worst`, or `first-success`, the first with `least_return`. Raises DatasetError."""
        if which.isdecimal():
            if not 1 <= int(which) <= len(self.entries):
                raise DatasetError(f"--episode {which}: the log holds {self.range}")
            return self.entries[int(which) - 1]
        if which == "first-success":
            for entry in self.entries:
                if least_return is not None and entry.total >= least_return:
                    return entry
            raise DatasetError(f"no episode in the log has a return of {least_return:g}: it holds {self.range}")
        candidates = [entry for entry in self.entries if not entry.cut] or self.entries
        return max(candidates, key=lambda entry: entry.total if which == "best" else -entry.total)

    def nearest(self, step: int) -> Entry:
        """The episode that ended nearest to this step of the run."""
        return min(self.entries, key=lambda entry: abs(entry.step - step))

    @property
    def range(self) -> str:
        first, last = self.entries[0], self.entries[-1]
        least, most = min(entry.total for entry in self.entries), max(entry.total for entry in self.entries)
        return (
            f"episodes 1 to {len(self.entries):,}, of steps {first.step:,} to {last.step:,}, "
            f"with returns of {amount(least)} to {amount(most)}"
        )

    def before(self, entry: Entry) -> Sequence[LoggedEpisode]:
        """The episodes to play before this one: those of its stream since the last seed of the environment. Empty if the episode
        began with a seed itself, or if the log does not reach back to one."""
        stream, first = self._streams[entry.logged.stream], entry.place
        while stream[first].start is None and stream[first].follows and first:
            first -= 1
        return stream[first : entry.place] if stream[first].start else []

    def is_seeded(self, entry: Entry) -> bool:
        """True if the log holds the seed that the episode follows from."""
        return entry.logged.start is not None or bool(self.before(entry))

    def rows(self, episode: LoggedEpisode) -> LoggedEpisode:
        """The episode with its rows. Raises Evicted."""
        return self._source.again(episode)

    def lines(self) -> Iterator[str]:
        """A table of the episodes."""
        yield f"{'episode':>8} {'step':>12} {'return':>12} {'length':>8}  end         actor, environment, policy"
        for entry in self.entries:
            end = "terminated" if entry.logged.terminated else "cut" if entry.cut else "truncated"
            actor, _, environment = entry.logged.stream
            yield (
                f"{entry.number:8,} {entry.step:12,} {amount(entry.total):>12} {entry.length:8,}  {end:<10}  "
                f"{actor}, {environment}, {entry.chosen_by}{'' if self.is_seeded(entry) else ', seed unknown'}"
            )
