"""The flow of experience through a run, and which process waits for which: computed once, for status.json and all views."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.reporting.figures import replay_record
from deploy.reporting.status_file import FlowFigures

WAITS = 0.15  # a side that waits for more of its time than this is limited by another process
NewestRecord = Mapping[str, float | None]  # of a process: a figure that is not finite is None in its file


def actors_wait(actors: Sequence[NewestRecord], replay: NewestRecord) -> float:
    """The share of their time that actors wait for replay to take their experience."""
    waited = total(actors, "wait_credit_fraction") or 0.0  # one that has never waited has no such figure
    return max(waited / max(len(actors), 1), replay.get("insert_hold_fraction") or 0.0)


def flow(status: Mapping[str, Any], records: Mapping[str, NewestRecord]) -> FlowFigures:
    """The rates between the processes of a run, and the edge at which one waits for another, from the newest records of its
    processes. `status` is its document without this part."""
    planned = [process["name"] for process in status["processes"] if process["role"] == "actor"]
    planned = planned or [name for name in records if name.startswith("actor-")]  # a run without a status.json
    actors = [records[name] for name in planned if records.get(name)]
    replay, learner = replay_record(records), records.get("learner") or {}  # type: ignore[arg-type]
    waits = {"experience": actors_wait(actors, replay), "batches": learner.get("data_wait_fraction") or 0.0}
    longest = max(waits, key=lambda edge: waits[edge])
    items, capacity, rate = replay.get("items"), replay.get("capacity"), replay.get("inserted_steps_per_second")
    sent, raw = (total(actors, f"{kind}_bytes_per_second") for kind in ("sent", "raw"))
    rollouts = items is not None and replay.get("band_low") is None
    left = (status.get("total_steps") or 0) - (status.get("steps") or 0)
    return FlowFigures(
        actors=len(planned),
        environments=total(actors, "environments"),
        steps_per_second=rate,
        sent_bytes_per_second=sent,
        compression=raw / sent if raw is not None and sent else None,
        rollouts=rollouts,
        fill=items / capacity if items is not None and capacity and not rollouts else None,
        items_per_second=replay.get("sampled_items_per_second"),
        updates_per_second=learner.get("updates_per_second"),
        policy_version=learner.get("policy_version"),
        lag=mean(actors, "lag"),
        actors_wait=waits["experience"],
        learner_waits=waits["batches"],
        blocked=longest if status["state"] == "running" and waits[longest] > WAITS else "",
        limit=(status.get("bottleneck") or "").partition(" ")[0],
        seconds_left=left / rate if left > 0 and rate and status["state"] == "running" else None,
    )


def finite(records: Sequence[NewestRecord], name: str) -> list[float]:
    return [value for record in records if (value := record.get(name)) is not None and math.isfinite(value)]


def total(records: Sequence[NewestRecord], name: str) -> float | None:
    """The sum over the processes; None where none has the figure."""
    values = finite(records, name)
    return sum(values) if values else None


def mean(records: Sequence[NewestRecord], name: str) -> float | None:
    values = finite(records, name)
    return sum(values) / len(values) if values else None
