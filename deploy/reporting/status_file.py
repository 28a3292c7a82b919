"""The form of status.json. It is read strictly, so that a file that something else has written cannot break its readers."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

Number = float | int | None


class ProcessFigures(Struct):
    name: str
    role: str
    state: str
    restarts: int
    pid: int | None = None
    silent_seconds: Number = None
    last_exit: str | None = None
    steps_per_second: Number = None
    rss_bytes: Number = None
    cpu_percent: Number = None
    host: str | None = None


class HostFigures(Struct):
    name: str
    state: str
    places: int
    actors: int
    silent_seconds: Number = None


class ReplayFigures(Struct):
    items: Number = None
    capacity: Number = None
    bytes: Number = None
    inserted_steps: Number = None
    sampled_items: Number = None
    duplicates: Number = None
    rejected: Number = None
    quarantined: Number = None
    samples_per_insert: Number = None


class LearnerFigures(Struct):
    epoch: Number = None
    updates: Number = None
    updates_per_second: Number = None
    policy_version: Number = None
    device: str | None = None
    precision: str | None = None
    data_wait_fraction: Number = None


class InferenceFigures(Struct):
    rows_per_second: Number = None
    rows_per_pass: Number = None
    policy_version: Number = None


class EvaluationFigures(Struct):
    policy_version: Number = None
    episodes: Number = None
    success_rate: Number = None
    return_mean: Number = None
    score_mean: Number = None
    best_version: Number = None


class Status(Struct):
    run: str
    state: str
    env: str
    algorithm: str
    processes: list[ProcessFigures]
    replay: ReplayFigures
    learner: LearnerFigures
    evaluation: EvaluationFigures
    troubles: dict[str, dict[str, int]] = {}
    shards: dict[str, ReplayFigures] | UnsetType = UNSET  # of several replay processes, which `replay` sums up
    inference: InferenceFigures | UnsetType = UNSET  # of the inference process of this machine, where there is one
    hosts: list[HostFigures] = []
    uptime_seconds: Number = None
    paused_since: Number = None  # seconds since 1970
    time: Number = None
    pid: int | None = None
    reason: str | None = None
    steps: int | None = None
    total_steps: int | None = None
    next_seed: int | None = None
    bottleneck: str | None = None


def read_document(data: bytes) -> dict[str, Any] | None:
    """The document of a status.json, with every key that is read; None if it is not one."""
    try:
        status = msgspec.json.decode(data, type=Status)
        document = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return document | msgspec.to_builtins(status)  # type: ignore[no-any-return]
