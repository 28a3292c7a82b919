"""What `headrace top` shows of a run at one time: from the status document, the metrics and the events, as the page has it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from deploy.recorded.run import Record, RecordedRun
from deploy.reporting.bottleneck import WAITS
from deploy.reporting.events import Event

UP = ("starting", "running", "paused", "stopping")
NO_TROUBLE = ("started", "running", "stopped")  # kinds of events


class View(NamedTuple):
    """`returns`: the mean return of the actors' episodes over the whole run, NaN where none ended. `now`: seconds since 1970."""

    status: Mapping[str, Any]
    newest: Mapping[str, Record]  # the last record of each process, and of replay as the sum of its shards
    returns: Sequence[float]
    events: Sequence[Event]
    now: float

    @property
    def up(self) -> bool:
        return self.status["state"] in UP

    @property
    def troubles(self) -> list[Event]:
        """The newest first."""
        return [event for event in reversed(self.events) if event.kind not in NO_TROUBLE]


class Flow(NamedTuple):
    """The rates between the processes. `blocked`: the edge at which a process waits for another; `why` says which."""

    actors: int
    steps_per_second: float | None
    fill: float | None  # of replay
    items_per_second: float | None
    updates_per_second: float | None
    version: float | None  # of the weights
    lag: float | None  # versions by which the actors are behind
    blocked: str  # "experience", "batches" or ""
    why: str


def view(recorded: RecordedRun) -> View:
    """Takes what is new in the files of the run."""
    recorded.read()
    returns = recorded.grid.column("actors.episode_return")
    return View(recorded.status(), recorded.newest, [float(value) for value in returns], list(recorded.events), time.time())


def flow_of(shown: View) -> Flow:
    planned = [process["name"] for process in shown.status["processes"] if process["role"] == "actor"]
    actors = [shown.newest[name] for name in planned if name in shown.newest]
    replay, learner = shown.newest.get("replay") or {}, shown.newest.get("learner") or {}
    actors_wait = max(mean(actors, "wait_credit_fraction") or 0.0, replay.get("insert_hold_fraction") or 0.0)
    learner_waits = learner.get("data_wait_fraction") or 0.0
    blocked, why = "", ""
    if shown.status["state"] == "running" and max(actors_wait, learner_waits) > WAITS:
        if actors_wait >= learner_waits:
            blocked, why = "experience", f"actors wait {actors_wait:.0%} of the time"
        else:
            blocked, why = "batches", f"learner waits {learner_waits:.0%} of the time"
    items, capacity = replay.get("items"), replay.get("capacity")
    rollouts = replay.get("band_low") is None  # each is learned from once, so that replay is nearly empty whenever one looks
    return Flow(
        len(planned),
        replay.get("inserted_steps_per_second") if shown.up else None,
        items / capacity if items is not None and capacity and not rollouts else None,
        replay.get("sampled_items_per_second") if shown.up else None,
        learner.get("updates_per_second") if shown.up else None,
        learner.get("policy_version"),
        mean(actors, "lag"),
        blocked,
        why,
    )


def mean(records: Sequence[Record], name: str) -> float | None:
    return mean_of([value for record in records if (value := record.get(name)) is not None])


def mean_of(values: Sequence[float]) -> float | None:
    """The mean of the finite values; None if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
