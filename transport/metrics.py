"""Counters, gauges and timed phases of one process, written as JSON lines."""

from __future__ import annotations

import math
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

import msgspec

from transport.files.writing import append

Record = dict[str, float]
INFO = "info/"  # begins the names of values of an environment's info
SHORT_SECONDS, LONG_SECONDS = 10.0, 60.0
FILE_BYTES, FILES_KEPT = 20_000_000, 1  # defaults; a file holds about a day


def finite(record: Record) -> Record:
    return {name: value for name, value in record.items() if math.isfinite(value)}


class Shares:
    """The process's use of the processor, as fractions of wall-clock time.

    `processor_fraction`: processor time of all threads (above 1 with several busy ones). `starved_fraction`: time in which the
    main thread was ready to run but waited for a core; Linux only.
    """

    def __init__(self) -> None:
        self._before = (time.monotonic(), time.process_time(), run_queue_seconds())

    def read(self) -> Record:
        """The fractions since the last call."""
        now, used, waited = time.monotonic(), time.process_time(), run_queue_seconds()
        (then, used_then, waited_then), self._before = self._before, (now, used, waited)
        elapsed = max(now - then, 1e-9)
        shares = {"processor_fraction": max(used - used_then, 0.0) / elapsed}
        if waited is not None and waited_then is not None:
            shares["starved_fraction"] = min((waited - waited_then) / elapsed, 1.0)
        return shares


def run_queue_seconds() -> float | None:
    """How long the main thread has waited for a core since it started; None where the system does not report it."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


class Phase:
    """Adds the duration of a `with` block to `seconds[name]`. A generator-based context manager takes four times as long."""

    __slots__ = ("_name", "_seconds", "_started")

    def __init__(self, seconds: Record, name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *failure: object) -> None:
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + time.monotonic() - self._started


def append_record(path: Path, record: Record, limit_bytes: int = FILE_BYTES, kept: int = FILES_KEPT) -> None:
    """Adds a record and the time as a line of JSON. At `limit_bytes` the file becomes NAME.jsonl.1; `kept` old ones are kept.

    With a full disk lines are lost, but the process goes on.
    """
    with suppress(OSError):  # NaN and infinity become null
        append(path, msgspec.json.encode({"time": time.time()} | record) + b"\n", limit_bytes, kept)


class Metrics:
    """The metrics of one process. Not thread-safe: use it from the main loop only.

    A record has each counter `c` as `c`, `c_per_second` (over 10 s) and `c_per_second_60`; each gauge under its name; each phase
    `p` as `p_fraction`, its fraction of the wall-clock time since the previous record.
    """

    def __init__(self, path: Path | None = None, limit_bytes: int = FILE_BYTES, kept: int = FILES_KEPT) -> None:
        """Appends records to `path`, if given."""
        self._path, self._limit_bytes, self._kept = path, limit_bytes, kept
        self._started = time.monotonic()
        self._counters: Record = {}
        self._gauges: Record = {}
        self._means: dict[str, tuple[float, int]] = {}
        self._phases: Record = {}
        self._history: deque[tuple[float, Record]] = deque([(self._started, {})])
        self._reported = self._started

    def count(self, name: str, amount: float = 1) -> None:
        self._counters[name] = self._counters.get(name, 0) + amount

    def begin_at(self, counters: Record) -> None:
        """Sets counters to the values of an earlier incarnation of the process; rates count from here."""
        self._counters.update(counters)
        self._history = deque([(self._started, dict(self._counters))])

    def gauge(self, name: str, value: float) -> None:
        self._gauges[name] = value

    def mean(self, name: str, value: float) -> None:
        """Adds a value; each record has the mean over the interval since the previous record."""
        total, number = self._means.get(name, (0.0, 0))
        self._means[name] = (total + value, number + 1)

    def phase(self, name: str) -> Phase:
        """Times a block: `with metrics.phase("act"): …`. Do not nest phases."""
        return Phase(self._phases, name)

    def spend(self, name: str, seconds: float) -> None:
        """Adds time that was measured elsewhere to a phase."""
        self._phases[name] = self._phases.get(name, 0.0) + seconds

    def value(self, name: str) -> float:
        return self._counters.get(name, self._gauges.get(name, 0))

    def record(self) -> Record:
        """Ends the interval; returns everything measured as one flat record and appends it to the file."""
        now = time.monotonic()
        elapsed = max(now - self._reported, 1e-9)
        record: Record = {"uptime_seconds": now - self._started}
        for name, value in self._counters.items():
            record[name] = value
            record[f"{name}_per_second"] = self._rate(name, value, now, SHORT_SECONDS)
            record[f"{name}_per_second_60"] = self._rate(name, value, now, LONG_SECONDS)
        record.update(self._gauges)
        record.update({name: total / number for name, (total, number) in self._means.items()})
        record.update({f"{name}_fraction": min(seconds / elapsed, 1.0) for name, seconds in self._phases.items()})
        self._phases.update(dict.fromkeys(self._phases, 0.0))  # in place, because a running Phase refers to this dict
        self._means.clear()
        self._reported = now
        self._history.append((now, dict(self._counters)))
        while len(self._history) > 2 and self._history[1][0] < now - LONG_SECONDS:
            self._history.popleft()
        if self._path:
            append_record(self._path, record, self._limit_bytes, self._kept)
        return record

    def _rate(self, name: str, value: float, now: float, window: float) -> float:
        # Compare with the newest entry that is at least `window` old; in a young process with the oldest entry.
        past, counters = self._history[0]
        for moment, values in self._history:
            if moment > now - window:
                break
            past, counters = moment, values
        return (value - counters.get(name, 0)) / max(now - past, 1e-9)
