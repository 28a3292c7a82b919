"""The history of a run from its files: read once, then only what is new. Memory grows by 16 bytes with each evaluation."""

from __future__ import annotations

import heapq
import math
import re
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import TextIOWrapper
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from actors.figures import EVALUATION
from deploy.errors import ConfigError
from deploy.recorded.configuration import Setting, settings_of
from deploy.recorded.fork_point import read_fork_point
from deploy.recorded.history import BREAK_SECONDS, NEW, Beginning, Grid, RunClock, StepTotal
from deploy.recorded.status import current_status, empty
from deploy.reporting.events import RunEvent
from deploy.reporting.figures import kept, replay_record, shown_in
from deploy.reporting.flow import flow
from deploy.reporting.new_lines import NewLines, files_in, rotated
from replay.shards import shard_names
from transport.files.documents import LineDecoder, open_file
from transport.messages.fields import MOST_ACTORS
from transport.run_dir import RunDir
from transport.text import plain

BINS, ACTOR_BINS = 1024, 128  # even
BIN_SECONDS = 5.0
EVALUATIONS, EVENTS, LOG_LINES = 2000, 1000, 4000  # kept
LOG_BYTES = 1_000_000  # of the log, read at first
LINE_LENGTH = 1000
MOST_FIGURES = 100  # of the learner: an algorithm may have any number
OF_EACH_ACTOR = ("steps_per_second", "wait_credit_fraction")
OF_ALL_ACTORS, OF_REPLAY, OF_EVALUATION = kept("actors"), kept("replay"), shown_in(EVALUATION, "page")
COUNTED = ("inserted_steps", "dropped_steps", "sampled_items")
ACTOR, REPLAY = re.compile(r"actor-\d{1,9}"), re.compile(r"replay(-\d{1,3})?")
ALONE = shard_names(1)
RECORDS_AT_ONCE = 1000

T = TypeVar("T")
Record = dict[str, float | None]
records_in = LineDecoder(Record)
# Of an actor's records, of which there are most, only these are decoded.
ActorRecord = msgspec.defstruct(
    "ActorRecord",
    [("time", float), *((name, float | None, None) for name in (*OF_ALL_ACTORS, *OF_EACH_ACTOR[:1], "environments"))],
)
ACTOR_FIGURES = {name: place for place, name in enumerate(ActorRecord.__struct_fields__)}
actor_records_in, events_in = LineDecoder(ActorRecord), LineDecoder(RunEvent)


class RecordedEvaluation(NamedTuple):
    """An evaluation and when it was: `seconds` is the time the run had been up. `best`: no policy had been better."""

    seconds: float
    best: bool
    figures: Record


class LogLine(NamedTuple):
    """A line of the merged log and its place among all lines that were read."""

    number: int
    text: str


class RecordedRun:
    """The history of a run. Not thread-safe."""

    def __init__(self, run: RunDir) -> None:
        """Reads nothing."""
        self.run = run
        self.fork = read_fork_point(run)
        self.begin = begin = Beginning(self.fork.seconds, self.fork.steps) if self.fork else NEW
        self.clock = RunClock(begin)
        self.total = StepTotal(begin)
        self.grid = Grid(BINS, BIN_SECONDS, begin)
        self.actors: dict[str, Grid] = {}
        self.newest: dict[str, Record] = {}  # the last record of each process
        self.evaluations: list[RecordedEvaluation] = []
        self.evaluations_seen = 0
        self.returns = array("d"), array("d")  # of every evaluation: when it was, as in Evaluation, and its mean return
        self.events: deque[RunEvent] = deque(maxlen=EVENTS)
        self.events_seen = 0
        self.log: deque[LogLine] = deque(maxlen=LOG_LINES)
        self.lines_seen = 0
        self._files: dict[str, NewLines] = {}
        self._events, self._log = NewLines(run.events), NewLines(run.log("run"), LOG_BYTES)
        self._learner_figures: list[str] = []
        self._unread = deque[str]()  # actors whose files the next call of `read` begins with
        self.late_reads = 0  # calls of `read` that may have changed bins of any age, not only the newest ones
        self._shards: dict[str, tuple[float, dict[str, float]]] = {}  # the newest record of each, and when it was written

    def read(self, seconds: float = math.inf) -> bool:
        """Takes what has been written since the last call. After `seconds` it reads the files of no further actor: the next call
        begins with them. Returns whether there are such actors."""
        deadline, late = time.monotonic() + seconds, bool(self._unread)
        processes = self._processes()
        self._replays(processes)
        if self.clock.begun:
            self._records("learner", self._learner)
            self._records("evaluator", self._evaluator)
            self._unread = self._unread or deque(name for name in processes if ACTOR.fullmatch(name))
            self._actors(deadline)
        for lines in self._events.blocks():
            found = events_in(lines)
            self.events.extend(found)
            self.events_seen += len(found)
        for lines in self._log.blocks():
            for line in lines:
                self.lines_seen += 1
                self.log.append(LogLine(self.lines_seen, plain(line.decode("utf-8", "replace"))[:LINE_LENGTH]))
        self.late_reads += late or bool(self._unread)
        return bool(self._unread)

    def status(self) -> dict[str, Any]:
        """The document of `headrace status`."""
        try:
            found = current_status(self.run)
        except ConfigError:  # its config.toml cannot be read
            found = empty(self.run.name, "?", "?") | {"state": "unknown"}
        if not (found["flow"] or {}).get("actors"):  # the file is of an older version, or there is none
            found["flow"] = msgspec.to_builtins(flow(found, self.newest))
        return found

    def settings(self) -> list[Setting]:
        """The configuration, each setting beside that of the preset."""
        return settings_of(self.run)

    def _processes(self) -> list[str]:
        folder = self.run.metrics("replay").parent
        return sorted({path.name.partition(".jsonl")[0] for path in files_in(folder, "*.jsonl*")})

    def _lines(self, name: str) -> Iterator[list[bytes]]:
        """The new lines of a process's metrics, many at a time."""
        return self._files.setdefault(name, NewLines(self.run.metrics(name))).blocks()

    def _blocks(self, name: str) -> Iterator[list[Record]]:
        """The new records of a process, many at a time."""
        for lines in self._lines(name):
            records = [record for record in records_in(lines) if record.get("time") is not None]
            if records:
                self.newest[name] = records[-1]
                yield records

    def _records(self, name: str, take: Callable[[Sequence[Record]], None]) -> None:
        for records in self._blocks(name):
            take(records)

    def _replays(self, processes: Sequence[str]) -> None:
        """Takes the records of replay; of its shards in the order of their times, each as the sum of all shards at that time."""
        names = [name for name in processes if REPLAY.fullmatch(name)]
        merged = heapq.merge(*map(self._timed, names), key=lambda found: found[0])
        while some := list(islice(merged, RECORDS_AT_ONCE)):
            self._replay([self._sum_of_shards(*one) for one in some])

    def _timed(self, name: str) -> Iterator[tuple[float, str, Record]]:
        for records in self._blocks(name):
            yield from ((_time(record), name, record) for record in records)

    def _sum_of_shards(self, time: float, name: str, record: Record) -> Record:
        kept = {key: value for key in (*OF_REPLAY, *COUNTED) if (value := record.get(key)) is not None}
        self._shards[name] = time, kept
        # A run may have been given another number of shards.
        self._shards = {
            one: found
            for one, found in self._shards.items()
            if time - found[0] <= BREAK_SECONDS and (one in ALONE) == (name in ALONE)
        }
        if (counter := _steps(record)) is not None:
            self.total.record(name, counter, bool(record.get("restored_steps")), self._shards)
        summed = replay_record({one: found for one, (_, found) in self._shards.items()})
        return {"time": time, "uptime_seconds": record.get("uptime_seconds"), "steps": self.total.steps, **summed}

    def _replay(self, records: Sequence[Record]) -> None:
        for record in records:
            self.clock.record(_time(record), record["uptime_seconds"] or 0.0)
        seconds = self.clock.seconds_at(np.array([_time(record) for record in records]))
        names = ("steps", *OF_REPLAY)
        values = np.array([[record.get(name) for name in names] for record in records], float)  # None becomes NaN
        self.grid.add(["steps", *(f"replay.{name}" for name in OF_REPLAY)], seconds, values)
        self.newest["replay"] = records[-1]

    def _learner(self, records: Sequence[Record]) -> None:
        records, seconds = self._placed(records)
        before: Record = {}
        for record in records:
            if record.keys() != before.keys():
                self._learner_figures += [name for name in learner_figures(record) if name not in self._learner_figures]
            before = record
        names = self._learner_figures[:MOST_FIGURES]
        values = np.array([[record.get(name) for name in names] for record in records], float).reshape(len(records), len(names))
        self.grid.add([f"learner.{name}" for name in names], seconds, values)

    def _actors(self, deadline: float) -> None:
        """Takes the new records of the actors in `_unread`. Those of many actors are added together, since most have one each."""
        tables, held = list[tuple[str, np.ndarray]](), 0
        while self._unread and time.monotonic() < deadline:
            name = self._unread.popleft()
            if name not in self.actors and len(self.actors) >= MOST_ACTORS:
                continue
            self.actors.setdefault(name, Grid(ACTOR_BINS, BIN_SECONDS, self.begin))
            for lines in self._lines(name):
                if records := actor_records_in(lines):
                    self.newest[name] = msgspec.structs.asdict(records[-1])
                    tables.append((name, np.array([msgspec.structs.astuple(record) for record in records], float)))
                    held += len(records)
                if held >= RECORDS_AT_ONCE:
                    self._add_actors(tables)
                    tables, held = [], 0
        if tables:
            self._add_actors(tables)

    def _add_actors(self, tables: Sequence[tuple[str, np.ndarray]]) -> None:
        """Adds records [N, figures], one table for each actor; NaN where a record has no such figure."""
        together = np.concatenate([table for _, table in tables])
        seconds = self.clock.seconds_at(together[:, 0])
        outside = ~np.isfinite(seconds)  # long before the run
        together[outside], seconds[outside] = np.nan, 0.0  # so nothing is added for them
        self.grid.add([f"actors.{figure}" for figure in OF_ALL_ACTORS], seconds, together[:, places_of(OF_ALL_ACTORS)])
        end = 0
        for name, table in tables:
            begin, end = end, end + len(table)
            self.actors[name].add(OF_EACH_ACTOR, seconds[begin:end], together[begin:end, places_of(OF_EACH_ACTOR)])

    def _evaluator(self, records: Sequence[Record]) -> None:
        for record, seconds in zip(*self._placed(records), strict=True):
            figures = {name: record.get(name) for name in OF_EVALUATION}
            version, last = figures["policy_version"], self.evaluations[-1] if self.evaluations else None
            if (mean := figures["return_mean"]) is None or (last and last.figures["policy_version"] == version):
                continue
            self.evaluations.append(RecordedEvaluation(seconds, record.get("best_version") == version, figures))
            self.evaluations_seen += 1
            for column, value in zip(self.returns, (seconds, mean), strict=True):
                column.append(value)
        self.evaluations = at_most(self.evaluations, EVALUATIONS)

    def _placed(self, records: Sequence[Record]) -> tuple[list[Record], list[float]]:
        """The records whose time lies in the run's, and when that was."""
        seconds = self.clock.seconds_at(np.array([_time(record) for record in records])).tolist()
        placed = [(record, at) for record, at in zip(records, seconds, strict=True) if math.isfinite(at)]
        return [record for record, _ in placed], [at for _, at in placed]

    def search(self, text: str, limit: int) -> list[str]:
        """The last lines of the whole log, its rotated files included, that have this text; capitals count as small letters."""
        wanted, found = text.lower(), deque[str](maxlen=limit)
        path = self.run.log("run")
        for file in (*rotated(path), path):
            try:
                with TextIOWrapper(open_file(file), "utf-8", "replace") as lines:
                    found.extend(plain(line.rstrip("\n"))[:LINE_LENGTH] for line in lines if wanted in line.lower())
            except OSError:
                continue
        return list(found)


def learner_figures(record: Mapping[str, float | None]) -> list[str]:
    """The figures of a learner's record that have a history: rates instead of counters, shares, the algorithm's own."""
    counters = {name.removesuffix("_per_second") for name in record if name.endswith("_per_second")}
    return [name for name in record if name not in counters | {"time", "uptime_seconds"} and not name.endswith("_60")]


def thinned(evaluations: Sequence[RecordedEvaluation]) -> list[RecordedEvaluation]:
    """Every second evaluation, the newest among them, and those that were best unless these are more than a quarter."""
    few = 4 * sum(one.best for one in evaluations) <= len(evaluations)
    newest = len(evaluations) - 1
    return [one for number, one in enumerate(evaluations) if (newest - number) % 2 == 0 or (few and one.best)]


def at_most(evaluations: list[RecordedEvaluation], most: int) -> list[RecordedEvaluation]:
    """At most `most` of them, thinned as often as that takes."""
    while len(evaluations) > most:
        evaluations = thinned(evaluations)
    return evaluations


def places_of(figures: Sequence[str]) -> list[int]:
    """The columns of figures in a table of actors' records."""
    return [ACTOR_FIGURES[figure] for figure in figures]


def _time(record: Record) -> float:
    return float(record["time"] or 0.0)


def _steps(record: Record) -> float | None:
    inserted = record.get("inserted_steps")
    return None if inserted is None else inserted + (record.get("dropped_steps") or 0.0)
