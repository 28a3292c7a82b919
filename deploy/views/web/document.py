"""A run as the page gets it, in JSON: whole at first, then only what is new; and the reference behind its return: of a fork the
run that it goes on from, of others a run of the same environment without further settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from deploy.recorded.history import Grid, steps_in
from deploy.recorded.run import EVALUATIONS, RecordedRun, at_most
from deploy.reporting.figures import charts
from deploy.views.web.branch import Branch
from deploy.views.web.columns import Document, evaluations, numbers
from deploy.views.web.videos import shown_videos

CURVES = "references.json"  # made by `python -m benchmarks.learning.references`
# These settings do not change the returns of an environment.
NOT_OF_THE_TASK = ("env.quantise", "env.stack", "env.chunk_length", "env.info_keywords", "env.preflight_seconds")


class PageFollower:
    """Gives an open page what is new in a run since its last call."""

    def __init__(
        self, recorded: RecordedRun, bins: int | None = None, log_lines: int | None = None, rows: int = EVALUATIONS
    ) -> None:
        """With `bins` the history is coarser than it was recorded, and with `log_lines` the log is shorter. `rows`: how many
        evaluations and events there are at most."""
        self._recorded, self._bins, self._log_lines, self._rows = recorded, bins, log_lines, rows
        self._grid, self._actors = _Sent(), dict[str, _Sent]()
        self._evaluations = self._events = self._lines = self._late_reads = -1
        self._videos: list[Document] | None = None
        self._settled: list[tuple[int, int]] | None = None  # the files of the settings that were sent
        self._branch = Branch(recorded, rows)

    def whole(self) -> Document:
        """Everything about the run."""
        self._settled = None
        return {
            "name": self._recorded.run.name,
            "charts": charts(),
            "fork": msgspec.to_builtins(self._recorded.fork),
            **self.news(),
        }

    def news(self) -> Document:
        """The changes since the last call. Lists of bins begin at `from`; a part that is not there has not changed."""
        run = self._recorded
        found: Document = {"now": time.time(), "status": run.status(), "newest": {**run.newest}, "began": run.clock.first}
        # A run that was resumed may have other settings; what is expected depends on the spec and the device.
        if self._settled != (files := [_written(path) for path in (run.run.config, run.run.spec, run.run.device)]):
            self._settled, own = files, run.settings()
            found["settings"] = [one._asdict() for one in own]
            found["reference"] = reference({one.key: one.value for one in own})
        if curve := self._branch.news():
            found["reference"] = curve
        if self._late_reads != run.late_reads:
            self._late_reads, self._grid = run.late_reads, _Sent()
        grid = run.grid if self._bins is None else run.grid.coarser(self._bins)
        if news := self._grid.news(grid):
            found["grid"] = news | {"steps": numbers(steps_in(grid)[news["from"] :], digits=9)}
        bins = None if self._bins is None else max(self._bins // 8, 16)
        actors = {name: self._actors.setdefault(name, _Sent()).news(own, bins) for name, own in run.actors.items()}
        found["actors"] = {name: news for name, news in actors.items() if news}
        if self._evaluations != run.evaluations_seen:
            self._evaluations = run.evaluations_seen
            found["evaluations"] = evaluations(at_most(run.evaluations, self._rows), grid)
        if self._events != run.events_seen:
            self._events = run.events_seen
            events = list(run.events)[-self._rows :]
            found["events"] = [msgspec.to_builtins(event) | {"seconds": run.clock.seconds(event.time)} for event in events]
        if self._videos != (videos := shown_videos(run.run)):
            self._videos = found["videos"] = videos
        if self._lines != run.lines_seen:
            lines = [line.text for line in run.log if line.number > self._lines]
            self._lines = run.lines_seen
            found["log"] = lines if self._log_lines is None else lines[-self._log_lines :] if self._log_lines else []
        return found


def _written(path: Path) -> tuple[int, int]:
    """Time and inode of a file, which change when it is written anew; two zeros where there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_ino


class _Sent:
    """The bins of a grid that have been sent."""

    def __init__(self) -> None:
        self._merges = self._changes = -1
        self._first = 0  # the newest bin may still change, and so may those where a process is late
        self._names: list[str] = []

    def news(self, grid: Grid, bins: int | None = None) -> Document | None:
        if self._changes == grid.changes or not grid.used:
            return None
        self._changes = grid.changes
        if bins is not None:
            grid = grid.coarser(bins)
        if grid.merges != self._merges or grid.names != self._names:
            self._first = 0
        self._merges, self._names, first = grid.merges, grid.names, self._first
        self._first = max(grid.used - 3, 0)
        figures = {name: numbers(grid.column(name, first)) for name in grid.names if name != "steps"}
        return {"from": first, "width": grid.width_seconds, "seconds": numbers(grid.seconds(first), 9), "figures": figures}


class ReferenceCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Evaluations of a run with `headrace up --env ENV` and nothing else."""

    env: dict[str, Any]  # its section of the configuration
    algorithm: str
    seed: int
    cores: int
    commit: str
    source: str  # the file that has all of its evaluations
    seconds: tuple[float, ...]  # since the start of the process
    steps: tuple[int, ...]
    return_mean: tuple[float, ...]


def reference(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The curve of the same environment with the same options, as the page shows it; None where there is none. `settings` are
    those of a run, by key."""
    task = of_the_task(settings)
    return next((msgspec.to_builtins(one) for one in curves() if of_the_task(flat(one.env)) == task), None)


@cache
def curves() -> tuple[ReferenceCurve, ...]:
    return msgspec.json.decode((files("deploy.views.web") / CURVES).read_bytes(), type=tuple[ReferenceCurve, ...])


def flat(env: Mapping[str, Any]) -> dict[str, Any]:
    return {f"env.{name}": value for name, value in env.items()}


def of_the_task(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key.startswith("env.") and key not in NOT_OF_THE_TASK}
