"""Passes the figures of a run to its sinks, each of which works in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any

import msgspec

from deploy.config.run import ConfigError
from deploy.reporting.base import NoOptions, Point, Sink
from transport.names import UnknownName, find, nearest

SINKS = {"tensorboard": "deploy.reporting.tensorboard:TensorBoard", "jsonl": "deploy.reporting.jsonl:JsonLines"}
WAITING_POINTS = 100
CLOSE_SECONDS = 2.0
Options = Mapping[str, Mapping[str, Any]]


def check(names: Sequence[str], options: Options) -> None:
    """Raises ConfigError where a sink cannot be found or its options do not fit."""
    for name in options:
        if name not in names:
            raise ConfigError(f"deploy.sink_options: {name!r} is not among deploy.sinks; {nearest(name, names)}")
    for name in names:
        _configured(name, options)


def _configured(name: str, options: Options) -> tuple[Callable[[Path, Any], Sink], Any]:
    """The class of the sink, and its options. Raises ConfigError."""
    try:
        found = find(name, SINKS, "sink")
        return found, msgspec.convert(dict(options.get(name, {})), getattr(found, "Config", NoOptions))
    except UnknownName as error:
        raise ConfigError(f"--sinks: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"deploy.sink_options of {name}: {str(error).replace('`', '')}") from error


class Sinks:
    """All sinks of a run. A slow sink misses points; the others do not."""

    def __init__(self, names: Sequence[str], options: Options, run: Path, say: Callable[[str], None]) -> None:
        """`say` is called from other threads, with a line for the log."""
        self._feeds = [_Feed(name, options, run, say) for name in dict.fromkeys(names)]

    def write(self, record: Point) -> None:
        for feed in self._feeds:
            feed.write(record)

    def close(self) -> None:
        """Lets the sinks write the points that wait, for two seconds at most."""
        for feed in self._feeds:
            feed.end()
        for feed in self._feeds:
            feed.thread.join(CLOSE_SECONDS)


class _Feed:
    """One sink and the points that wait for it."""

    def __init__(self, name: str, options: Options, run: Path, say: Callable[[str], None]) -> None:
        self._name, self._options, self._run, self._say = name, options, run, say
        self._waiting: Queue[Point] = Queue(WAITING_POINTS)
        self._ending = threading.Event()
        self.thread = threading.Thread(target=self._work, name=f"sink {name}", daemon=True)
        self.thread.start()

    def write(self, record: Point) -> None:
        if self.thread.is_alive():
            try:
                self._waiting.put_nowait(record)
            except Full:
                pass

    def end(self) -> None:
        self._ending.set()

    def _work(self) -> None:
        try:
            make, config = _configured(self._name, self._options)
            sink = make(self._run, config)
            while not (self._ending.is_set() and self._waiting.empty()):
                try:
                    record = self._waiting.get(timeout=0.1)
                except Empty:
                    continue
                sink.write(record)
            sink.close()
        except BaseException as error:  # also SystemExit from a library: it ends the sink, not the run
            reason = " ".join(str(error).split()) or type(error).__name__
            self._say(f"sink {self._name} is off for the rest of this run: {type(error).__name__}: {reason}")
