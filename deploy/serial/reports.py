"""The files and lines of a run in one process: log, status.json, events, points for sinks and callbacks. Its loop calls them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from actors.figures import EVALUATION
from deploy.config.run import RunConfig, steps_name
from deploy.recorded.configuration import read_device
from deploy.recorded.status import Document, empty
from deploy.reporting import figures
from deploy.reporting.base import Point, Sink
from deploy.reporting.events import EventLog
from deploy.reporting.flow import flow
from deploy.reporting.logs import Log
from deploy.reporting.sinks import feeds
from deploy.reporting.sinks.callbacks import CallbackConfig, CallbackSink
from deploy.reporting.status_file import ProcessFigures
from deploy.supervision.status import troubles, values
from transport.files.writing import write_atomically
from transport.metrics import FILE_BYTES, Record
from transport.run_dir import RunDir

POINT_SECONDS = 10.0  # between two points, each with a new status.json
ACTOR, REPLAY, LEARNER, EVALUATOR = "actor-0", "replay", "learner", "evaluator"


class Printer:
    """A terminal without a thread. One that is closed stops no run: the files have every line."""

    coloured = False

    def line(self, text: str) -> None:
        with suppress(OSError, ValueError):
            print(text, flush=True)

    def close(self) -> None: ...


class CallbacksHere(CallbackSink):
    """Callbacks in this process: what they raise is raised."""

    def __init__(self, run: Path, name: str, stop: Callable[[str], None]) -> None:
        super().__init__(run, CallbackConfig(name))
        self._stop = stop

    def _call(self, method: str, argument: object) -> None:
        called = getattr(self._found, method, None)
        if called is not None and called(argument) is False:
            self._stop(f"{type(self._found).__name__}.{method} returned False")


class SerialReports:
    """Keeps the newest record of each role."""

    def __init__(self, run: RunDir, config: RunConfig) -> None:
        self._run, self._config = run, config
        deploy = config.deploy
        self.log = Log(run, FILE_BYTES, deploy.files_kept, Printer(), deploy.verbosity)
        self.records: dict[str, Record] = {}
        self._sinks: list[Sink] = []
        self._events = EventLog(run.events, FILE_BYTES, deploy.files_kept)
        self._began = self._next = time.monotonic()
        self._plotted_version: float | None = None  # policy version of the newest evaluation among the points

    def open_sinks(self, stop: Callable[[str], None], closing: ExitStack) -> None:
        """Makes sinks and callbacks, which `closing` closes. `stop` is called with a reason where callbacks ask for it. Raises
        ConfigError, and what callbacks raise."""
        for sink in feeds.open_here(self._config.deploy, self._run.path):
            self._sinks.append(sink)
            closing.callback(sink.close)
        for name in self._config.deploy.callbacks:
            called = CallbacksHere(self._run.path, name, stop)
            self._sinks.append(called)
            closing.callback(called.close)

    def turn(self, steps: int) -> None:
        """Writes the status and a point where it is time for them."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + POINT_SECONDS
            self._write_status(steps, "running")
            self.point(steps)

    def end(self, steps: int, state: str, reason: str) -> None:
        """Writes the last status and the last line."""
        self.log.line("supervisor", f"run {self._run.name} {state}: {reason} · {steps:,} {steps_name(self._config)}")
        self._write_status(steps, state, reason)

    def _write_status(self, steps: int, state: str, reason: str = "") -> None:
        status = self._status(steps, state, reason)
        with suppress(OSError):  # on a full disk the run goes on
            write_atomically(self._run.status, msgspec.json.encode(status))
        self._events.turn(status)

    def point(self, steps: int) -> None:
        """Gives the newest figures to sinks and callbacks. Raises what callbacks raise."""
        evaluation = self.records.get(EVALUATOR, {})
        if evaluation.get("policy_version") == self._plotted_version:
            evaluation = {}
        self._plotted_version = evaluation.get("policy_version", self._plotted_version)
        parts = self.records.get(REPLAY, {}), self.records.get(LEARNER, {}), evaluation
        if self.records:
            point = Point(steps, time.time(), figures.tags({0: self.records.get(ACTOR, {})}, *parts, steps))
            for sink in self._sinks:
                sink.write(point)

    def _status(self, steps: int, state: str, reason: str) -> Document:
        config, records, up = self._config, self.records, state == "running"
        absent = [ACTOR] * config.offline + [EVALUATOR] * (not config.evaluator.enabled)
        processes = [
            ProcessFigures(
                name,
                name.partition("-")[0],
                "ready" if up else "stopped",
                restarts=0,
                pid=os.getpid() if up else None,
                steps_per_second=records.get(name, {}).get("steps_per_second"),
            )
            for name in (REPLAY, LEARNER, ACTOR, EVALUATOR)
            if name not in absent
        ]
        found = empty(self._run.name, config.env.id, config.algorithm.name) | {
            "state": state,
            "reason": reason or None,
            "pid": os.getpid(),
            "time": time.time(),
            "uptime_seconds": round(time.monotonic() - self._began, 1),
            "steps": steps,
            "total_steps": config.total_steps or None,
            "processes": msgspec.to_builtins(processes),
            "replay": values(records.get(REPLAY, {}), figures.REPLAY),
            "learner": values(records.get(LEARNER, {}), figures.LEARNER) | read_device(self._run),
            "evaluation": values(records.get(EVALUATOR, {}), EVALUATION),
            "troubles": troubles(records),
        }
        return found | {"flow": msgspec.to_builtins(flow(found, records))}
