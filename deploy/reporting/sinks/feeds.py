"""Passes the figures of a run to its sinks. Each sink has its own thread, and some have their own process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any, NamedTuple

import msgspec

from deploy.config.run import DeployConfig
from deploy.errors import ConfigError
from deploy.reporting.base import NoSinkOptions, Point, Sink
from deploy.reporting.sinks import callbacks
from deploy.reporting.sinks.process import ProcessEnded, ProcessSink
from learner.devices import installing
from transport.names import UnknownName, find, nearest

SINKS = {
    "tensorboard": "deploy.reporting.sinks.tensorboard:TensorBoard",
    "jsonl": "deploy.reporting.sinks.files:JsonLines",
    "csv": "deploy.reporting.sinks.files:CsvTable",
    "prometheus": "deploy.reporting.sinks.prometheus:Prometheus",
    "wandb": "deploy.reporting.sinks.wandb:WeightsAndBiases",
    "mlflow": "deploy.reporting.sinks.mlflow:MLflow",
}
WAITING_POINTS = 100
CLOSE_SECONDS, PROCESS_CLOSE_SECONDS = 2.0, 5.0
Options = Mapping[str, Mapping[str, Any]]
Say = Callable[[str], None]
OnLine = Callable[[str, str], None]


class _PlannedSink(NamedTuple):
    """A sink that is to be made."""

    make: Callable[[Path, Any], Sink]
    config: Any  # an instance of its options
    reference: str
    label: str  # before each line of the log that the process of the sink prints


def check(deploy: DeployConfig, here: bool = False) -> None:
    """Raises ConfigError where a sink cannot be found or its options do not fit, or where callbacks cannot be called. `here`:
    callbacks are imported into this process."""
    names = _names(deploy)
    for name in deploy.sink_options:
        if name not in names:
            raise ConfigError(f"deploy.sink_options: {name!r} is not among deploy.sinks; {nearest(name, names)}")
    for title, plan in _plans(deploy).items():
        found = plan().make
        package, extra = getattr(found, "package", ""), getattr(found, "extra", "")
        if package and find_spec(package) is None:
            advice = f": {installing.headrace(extra)}" if extra else ""
            raise ConfigError(f"{title} needs {package}, which is not installed{advice}")
    for name in deploy.callbacks:
        callbacks.check(name, here)


def open_here(deploy: DeployConfig, run: Path) -> Iterator[Sink]:
    """All sinks of a run, made and called in this process; callbacks are not among them. Raises ConfigError."""
    plans = [_sink(name, deploy.sink_options) for name in _names(deploy)]
    return (plan.make(run, plan.config) for plan in plans)


def _names(deploy: DeployConfig) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*deploy.sinks, *deploy.track]))


def _plans(deploy: DeployConfig) -> dict[str, Callable[[], _PlannedSink]]:
    """A function for each sink that imports it or raises ConfigError, by the name of the sink in messages."""
    sinks = {f"sink {name}": partial(_sink, name, deploy.sink_options) for name in _names(deploy)}
    return sinks | {f"callbacks {name}": partial(_callbacks, name) for name in deploy.callbacks}


def _sink(name: str, options: Options) -> _PlannedSink:
    try:
        found = find(name, SINKS, "sink")
        config = msgspec.convert(dict(options.get(name, {})), getattr(found, "Config", NoSinkOptions))
    except UnknownName as error:
        raise ConfigError(f"--sinks: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"deploy.sink_options of {name}: {str(error).replace('`', '')}") from error
    return _PlannedSink(found, config, SINKS.get(name, name), name if name in SINKS else "sink")


def _callbacks(name: str) -> _PlannedSink:
    made = callbacks.CallbackSink
    return _PlannedSink(made, callbacks.CallbackConfig(name), f"{made.__module__}:{made.__name__}", "callback")


class Sinks:
    """All sinks of a run. A slow sink misses points; the others do not."""

    def __init__(self, deploy: DeployConfig, run: Path, say: Say, on_line: OnLine) -> None:
        """`say` is called from other threads, with a line for the log; `on_line(label, line)` also, with what the process of a
        sink prints."""
        self._feeds = [_Feed(title, plan, run, say, on_line) for title, plan in _plans(deploy).items()]

    def write(self, record: Point) -> None:
        for feed in self._feeds:
            feed.write(record)

    def close(self) -> None:
        """Lets the sinks write the points that wait, for two seconds, or for five if a sink has its own process."""
        for feed in self._feeds:
            feed.end()
        began = time.monotonic()
        for feed in self._feeds:
            feed.join(began)


class _Feed:
    """One sink and the points that wait for it."""

    def __init__(self, title: str, plan: Callable[[], _PlannedSink], run: Path, say: Say, on_line: OnLine) -> None:
        self._title, self._plan, self._run, self._say, self._on_line = title, plan, run, say, on_line
        self._process: ProcessSink | None = None
        self._waiting: Queue[Point] = Queue(WAITING_POINTS)
        self._ending = threading.Event()
        self._missed = self._left = False
        self._thread = threading.Thread(target=self._work, name=title, daemon=True)
        self._thread.start()

    def write(self, record: Point) -> None:
        if not self._thread.is_alive():
            return
        try:
            self._waiting.put_nowait(record)
        except Full:
            if not self._missed:
                self._say(f"{self._title} is too slow: points are left out while {WAITING_POINTS} wait for it")
            self._missed = True

    def end(self) -> None:
        self._ending.set()

    def join(self, began: float) -> None:
        """Waits for the sink to end, for CLOSE_SECONDS or PROCESS_CLOSE_SECONDS after `began`, a monotonic time."""
        limit = CLOSE_SECONDS
        self._thread.join(max(began + limit - time.monotonic(), 0.0))
        if self._process:
            limit = PROCESS_CLOSE_SECONDS
            self._thread.join(max(began + limit - time.monotonic(), 0.0))
        self._left = self._thread.is_alive()
        if self._left:
            self._say(f"{self._title} is ended: {limit:.0f} s after the run it had not written all its points")
        if self._process:
            self._process.kill()

    def _work(self) -> None:
        try:
            sink = self._make()
            while not (self._ending.is_set() and self._waiting.empty()):
                try:
                    record = self._waiting.get(timeout=0.1)
                except Empty:
                    if self._process:
                        self._process.check()
                    continue
                sink.write(record)
            sink.close()
        except BaseException as error:  # also SystemExit from a library: it ends the sink, not the run
            if not self._left:
                self._say(f"{self._title} is off for the rest of this run: {_reason(error)}")

    def _make(self) -> Sink | ProcessSink:
        plan = self._plan()
        found = plan.make
        if not getattr(found, "own_process", False):
            return found(self._run, plan.config)
        self._process = ProcessSink(plan.reference, plan.config, self._run, plan.label, self._on_line)
        return self._process


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, ProcessEnded) else f"{type(error).__name__}: {text or type(error).__name__}"
