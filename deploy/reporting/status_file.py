"""The form of status.json. It is read strictly, so that a file that something else has written cannot break its readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from actors.figures import EVALUATION, Figure
from deploy.reporting.figures import INFERENCE, LEARNER, REPLAY, shown_in
from transport.files.documents import Damaged, decode

LARGEST = 2**53  # of a number that this version writes; seconds since 1970 beyond it are no time
Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)] | Annotated[int, Meta(ge=-LARGEST, le=LARGEST)] | None
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
LATEST = 2**37  # seconds since 1970, in the year 6325
Moment = Annotated[float, Meta(ge=0, le=LATEST)] | None


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


class FlowFigures(Struct):
    """The rates between the processes, and which of them wait: see deploy/reporting/flow.py. Rates are by second."""

    actors: Count = 0
    environments: Number = None
    steps_per_second: Number = None
    sent_bytes_per_second: Number = None
    compression: Number = None  # bytes of experience, divided by those that are sent
    rollouts: bool = False  # each is learned from once, so that replay is nearly empty whenever one looks
    fill: Number = None  # of replay, 0 to 1; None for rollouts
    items_per_second: Number = None
    updates_per_second: Number = None
    policy_version: Number = None
    lag: Number = None  # versions by which the actors are behind
    actors_wait: Number = None  # shares of their time
    learner_waits: Number = None
    blocked: str = ""  # the edge where a process waits for another: "experience", "batches" or none
    limit: str = ""  # the first word of `bottleneck`
    seconds_left: Number = None  # until total_steps


class ForecastFigures(Struct):
    """The score of an evaluation at `ends_at`; four of five times it is from `low` to `high`."""

    figure: str  # of actors/figures.py
    score: Number
    low: Number
    high: Number


def figures_struct(name: str, figures: Sequence[Figure], *texts: str) -> type[Struct]:
    """The form of a section: the figures that the registry shows in the status, and texts."""
    numbers = [(key, Number, None) for key in shown_in(figures, "status")]
    return msgspec.defstruct(name, [*numbers, *((key, str | None, None) for key in texts)])


ReplayFigures = figures_struct("ReplayFigures", REPLAY)
LearnerFigures = figures_struct("LearnerFigures", LEARNER, "device", "precision")
InferenceFigures = figures_struct("InferenceFigures", INFERENCE)
EvaluationFigures = figures_struct("EvaluationFigures", EVALUATION)


class Status(Struct):
    run: str
    state: str
    env: str
    algorithm: str
    processes: list[ProcessFigures]
    replay: ReplayFigures  # type: ignore[valid-type]
    learner: LearnerFigures  # type: ignore[valid-type]
    evaluation: EvaluationFigures  # type: ignore[valid-type]
    troubles: dict[str, dict[str, Count]] = {}
    shards: dict[str, ReplayFigures] | UnsetType = UNSET  # type: ignore[valid-type]  # of several, which `replay` sums up
    inference: InferenceFigures | UnsetType = UNSET  # type: ignore[valid-type]  # of this machine, where there is one
    hosts: list[HostFigures] = []
    steered: list[str] = []  # actors that a person steers
    uptime_seconds: Number = None
    paused_since: Moment = None
    paused_because: str | None = None
    time: Moment = None
    pid: Count | None = None
    reason: str | None = None
    steps: Count | None = None
    total_steps: Count | None = None
    next_seed: Count | None = None
    bottleneck: str | None = None
    flow: FlowFigures | None = None  # None in a file of an older version
    ends_at: Moment = None  # by --stop-at, --stop-after or total_steps, as far as that is known now
    forecast: ForecastFigures | None = None  # None while too little is known


def read_document(data: bytes) -> dict[str, Any] | None:
    """The document of a status.json, with every key that is read; None if it is not one."""
    try:
        status, document = decode(data, Status), decode(data, dict[str, Any])
    except Damaged:
        return None
    return document | msgspec.to_builtins(status)  # type: ignore[no-any-return]
