"""Counters, gauges and timed phases of one process; JSON lines out."""

from __future__ import annotations

import math
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

import msgspec

from transport.run_dir import set_aside

Record = dict[str, float]
SHORT_SECONDS, LONG_SECONDS = 10.0, 60.0
FILE_BYTES, FILES_KEPT = 20_000_000, 1  # about a day; where nothing else is configured


def finite(record: Record) -> Record:
    """Without what is no number or infinite: nobody can count with it."""
    return {name: value for name, value in record.items() if math.isfinite(value)}


class Shares:
    """How a process and its processor got on, as shares of the wall clock.

    `processor_fraction` is what all its threads computed (above 1 with several); `starved_fraction` is how long its main thread
    could have computed but had to wait for a core, where the system (Linux) tells.
    """

    def __init__(self) -> None:
        """Counts from here."""
        self._before = (time.monotonic(), time.process_time(), waited_for_a_core_seconds())

    def read(self) -> Record:
        """The shares since the last call."""
        now, used, waited = time.monotonic(), time.process_time(), waited_for_a_core_seconds()
        (then, used_then, waited_then), self._before = self._before, (now, used, waited)
        elapsed = max(now - then, 1e-9)
        shares = {"processor_fraction": max(used - used_then, 0.0) / elapsed}
        if waited is not None and waited_then is not None:
            shares["starved_fraction"] = min((waited - waited_then) / elapsed, 1.0)
        return shares


def waited_for_a_core_seconds() -> float | None:
    """How long the main thread has stood in line for a core since it began; None where the system does not say."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


class Phase:
    """A block that is timed. Several in each turn of a main loop: a generator would cost four times as much."""

    __slots__ = ("_begun", "_name", "_seconds")

    def __init__(self, seconds: Record, name: str) -> None:
        """Adds to `seconds[name]`."""
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        """Begins."""
        self._begun = time.monotonic()

    def __exit__(self, *failure: object) -> None:
        """Ends, however."""
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + time.monotonic() - self._begun


class Metrics:
    """What one process counts. Not thread-safe: each process counts in its main loop.

    A record holds every counter `c` as `c`, `c_per_second` (over 10 s) and `c_per_second_60`; every gauge under its name; every
    phase `p` as `p_fraction`, its share of the wall clock since the record before.
    """

    def __init__(self, path: Path | None = None, limit_bytes: int = FILE_BYTES, kept: int = FILES_KEPT) -> None:
        """Appends records to `path`, if one is given; at `limit_bytes` it is set aside as NAME.jsonl.1, and `kept` such stay."""
        self._path, self._limit_bytes, self._kept = path, limit_bytes, kept
        self._file = path.open("a", encoding="utf-8") if path else None
        self._started = time.monotonic()
        self._counters: Record = {}
        self._gauges: Record = {}
        self._means: dict[str, tuple[float, int]] = {}
        self._phases: Record = {}
        self._history: deque[tuple[float, Record]] = deque([(self._started, {})])
        self._reported = self._started

    def count(self, name: str, amount: float = 1) -> None:
        """Adds to a counter that only grows."""
        self._counters[name] = self._counters.get(name, 0) + amount

    def begin_at(self, counters: Record) -> None:
        """Takes up counters where an earlier incarnation of the process left them; rates count from here."""
        self._counters.update(counters)
        self._history = deque([(self._started, dict(self._counters))])

    def gauge(self, name: str, value: float) -> None:
        """Sets a value as it is now."""
        self._gauges[name] = value

    def mean(self, name: str, value: float) -> None:
        """Adds a value whose mean over the interval between two records is reported."""
        total, number = self._means.get(name, (0.0, 0))
        self._means[name] = (total + value, number + 1)

    def phase(self, name: str) -> Phase:
        """Times a block: `with metrics.phase("act"): …`. Phases should not nest."""
        return Phase(self._phases, name)

    def spend(self, name: str, seconds: float) -> None:
        """Adds to a phase what was timed elsewhere."""
        self._phases[name] = self._phases.get(name, 0.0) + seconds

    def value(self, name: str) -> float:
        """A counter or a gauge as it stands."""
        return self._counters.get(name, self._gauges.get(name, 0))

    def record(self) -> Record:
        """Closes the interval: everything measured, as one flat record; also appended to the file."""
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
        self._phases.update(dict.fromkeys(self._phases, 0.0))  # in place: a phase may be under way
        self._means.clear()
        self._reported = now
        self._history.append((now, dict(self._counters)))
        while len(self._history) > 2 and self._history[1][0] < now - LONG_SECONDS:
            self._history.popleft()
        self._append({"time": time.time()} | record)
        return record

    def _append(self, line: Record) -> None:
        if self._path is None or self._file is None:
            return
        with suppress(OSError):  # a full disk costs lines, not the process
            self._file.write(msgspec.json.encode(line).decode() + "\n")  # what is not finite becomes null, as JSON has it
            self._file.flush()
            if self._file.tell() >= self._limit_bytes:
                self._file.close()
                set_aside(self._path, self._kept)
                self._file = self._path.open("a", encoding="utf-8")

    def _rate(self, name: str, value: float, now: float, window: float) -> float:
        # The newest mark at least `window` old; the oldest there is while the process is younger than that.
        past, counters = self._history[0]
        for moment, marked in self._history:
            if moment > now - window:
                break
            past, counters = moment, marked
        return (value - counters.get(name, 0)) / max(now - past, 1e-9)

    def close(self) -> None:
        """Closes the file."""
        if self._file:
            with suppress(OSError):
                self._file.close()
