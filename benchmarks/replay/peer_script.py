"""Helpers of the scripts of peers. Needs numpy alone: it runs in their environments."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common.recording import Recording

STACK = 4
MILLION = 1e6


class Request(NamedTuple):
    """The request of `benchmarks.replay.peer`, the same for every peer and for Headrace. `mix`: samples per insert."""

    seconds: float
    n_step: int
    mix: float
    capacity: int
    batch: int
    peer: str

    @property
    def window(self) -> int:
        """Frames of an item."""
        return STACK + self.n_step


def read_request() -> Request:
    """Reads it from the command line."""
    return Request(**json.loads(sys.argv[1]))


def rows_for_ever(recording: Recording, begin: int = 0) -> Iterator[int]:
    """Rows of the recording, round and round, from the start of an episode on."""
    row = begin
    while True:
        yield row
        row = (row + 1) % len(recording)


def check_windows(recording: Recording, first: np.ndarray, windows: np.ndarray) -> None:
    """Raises AssertionError where windows [B, W, 84, 84] are not the recording's rows from `first` [B] on."""
    rows = (first[:, None] + np.arange(windows.shape[1])) % len(recording)
    assert (windows == recording.observation[rows]).all(), "an item's frames are not what was written"


def figure(case: str, metric: str, unit: str, value: float) -> dict[str, Any]:
    """One figure, named as Headrace names it."""
    return {"case": case, "metric": metric, "unit": unit, "value": value}


def rates(
    case: str, inserted: int = 0, sampled: int = 0, *, seconds: float, cpu_seconds: float, server: float | None = None
) -> list[dict[str, Any]]:
    """The figures of a case. `cpu_seconds`: of all processes; `server`: of the server, where there is one."""
    found = []
    for metric, unit, each, count in (("inserts", "steps/s", "insert", inserted), ("samples", "items/s", "sample", sampled)):
        if count:
            found.append(figure(case, metric, unit, count / seconds))
            found.append(figure(case, f"all CPU per {each}", "s/million", MILLION * cpu_seconds / count))
            if server is not None:
                found.append(figure(case, f"server CPU per {each}", "s/million", MILLION * server / count))
    if inserted and sampled:
        found.append(figure(case, "samples per insert", "", sampled / inserted))
    return found


def print_answer(version: str, settings: dict[str, Any], checked: int, results: list[dict[str, Any]]) -> None:
    """Prints everything, on the last line."""
    print(json.dumps({"version": version, "settings": settings, "checked": checked, "results": results}), flush=True)
