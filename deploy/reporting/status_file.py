"""The form of status.json. It is read strictly, so that a file that something else has written cannot break its readers."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from transport.files.documents import Damaged, decode

LARGEST = 2**53  # of a number that this version writes; seconds since 1970 beyond it are no time
Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)] | Annotated[int, Meta(ge=-LARGEST, le=LARGEST)] | None
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Moment = Annotated[float, Meta(ge=0, le=2**37)] | None  # seconds since 1970, until the year 6325


class ProcessFigures(Struct):
    name: str
    role: str
    state: str
    restarts: Count
    pid: Count | None = None
    silent_seconds: Number = None
    last_exit: str | None = None
    steps_per_second: Number = None
    rss_bytes: Number = None
    cpu_percent: Number = None
    host: str | None = None


class HostFigures(Struct):
    name: str
    state: str
    places: Count
    actors: Count
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
    troubles: dict[str, dict[str, Count]] = {}
    shards: dict[str, ReplayFigures] | UnsetType = UNSET  # of several replay processes, which `replay` sums up
    inference: InferenceFigures | UnsetType = UNSET  # of the inference process of this machine, where there is one
    hosts: list[HostFigures] = []
    uptime_seconds: Number = None
    paused_since: Moment = None
    time: Moment = None
    pid: Count | None = None
    reason: str | None = None
    steps: Count | None = None
    total_steps: Count | None = None
    next_seed: Count | None = None
    bottleneck: str | None = None


def read_document(data: bytes) -> dict[str, Any] | None:
    """The document of a status.json, with every key that is read; None if it is not one."""
    try:
        status, document = decode(data, Status), decode(data, dict[str, Any])
    except Damaged:
        return None
    return document | msgspec.to_builtins(status)  # type: ignore[no-any-return]
