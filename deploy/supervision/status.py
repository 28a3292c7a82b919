"""The document of `headrace status`, which the supervisor makes each second."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence

import msgspec

from actors.figures import EVALUATION, Figure
from deploy.config.run import RunConfig
from deploy.places.base import Usage
from deploy.recorded.status import Document
from deploy.reporting.figures import INFERENCE as INFERENCE_FIGURES
from deploy.reporting.figures import LEARNER, REPLAY, replay_record, shard_records
from deploy.reporting.flow import flow
from deploy.reporting.remote import RemoteActors
from deploy.supervision.processes import ProcessState
from deploy.supervision.supervisor import Supervisor
from learner.config import INFERENCE
from transport.metrics import Record
from transport.run_dir import RunDir

SILENT_SECONDS = 5.0
TROUBLES = (  # counts that should be zero: bad input that a check has stopped
    *("broken_episodes", "rejected_weights"),  # actors
    *("rejected", "malformed", "quarantined", "impostors"),  # replay, about its clients
    *("unfit_priorities", "unlogged_chunks", "damaged_chunks", "missing_chunks"),  # replay itself
    *("skipped_updates", "rollbacks", "refused_weights", "failed_checkpoints"),  # the learner
)


def values(record: Record, figures: Sequence[Figure]) -> dict[str, float | int | None]:
    """The figures of a record that the status has, None where one is missing. Counts are whole numbers."""
    shown = [(figure, record.get(figure.name)) for figure in figures if "status" in figure.shown]
    return {
        figure.name: int(value) if value is not None and figure.form in ("count", "bytes") else value for figure, value in shown
    }


def run_state(supervisor: Supervisor, paused: bool = False) -> str:
    """The state of the whole run."""
    if supervisor.finished:
        return "failed" if supervisor.exit_status else "stopped"
    if supervisor.stopping:
        return "stopping"
    if paused:
        return "paused"
    return "running" if supervisor.all_ready else "starting"


def document(
    run: RunDir,
    config: RunConfig,
    device: Document,
    supervisor: Supervisor,
    remote: RemoteActors,
    uptime_seconds: float,
    steps: float,
    evaluation: Document,
    paused_since: float | None = None,
    paused_because: str | None = None,
    bottleneck: str | None = None,
) -> Document:
    """Everything about the run now; a key without a figure holds None. `evaluation` is the newest evaluation, `paused_since` in
    seconds since 1970 and `paused_because` for people, `bottleneck` the newest line about it."""
    # A stopped run keeps its last figures. While it is up, a process that is started again begins without figures.
    records = remote.records | {
        slot.name: slot.record or (slot.last_record if supervisor.stopping else {}) for slot in supervisor.slots
    }
    shards = shard_records(records)
    found: Document = {
        "run": run.name,
        "state": run_state(supervisor, paused_since is not None),
        "reason": supervisor.reason or None,
        "pid": os.getpid(),
        "time": time.time(),
        "uptime_seconds": round(uptime_seconds, 1),
        "paused_since": paused_since,
        "paused_because": paused_because,
        "env": config.env.id,
        "algorithm": config.algorithm.name,
        "steps": int(steps),
        "total_steps": config.total_steps or None,
        "processes": [
            *(_process(slot, supervisor) for slot in supervisor.slots),
            *(_remote_actor(name, remote) for name in sorted(remote.known) if not supervisor.finished),
        ],
        "replay": values(replay_record(records), REPLAY),
        "learner": values(records.get("learner", {}), LEARNER) | {key: device.get(key) for key in ("device", "precision")},
        "evaluation": values({}, EVALUATION) | evaluation,
        "troubles": troubles(records),
        **({"shards": {name: values(record, REPLAY) for name, record in shards.items()}} if shards else {}),
        **({"inference": values(records[INFERENCE], INFERENCE_FIGURES)} if INFERENCE in records else {}),
        "hosts": [],
        "bottleneck": bottleneck,
    }
    return found | {"flow": msgspec.to_builtins(flow(found, records))}


def troubles(records: dict[str, Record]) -> dict[str, dict[str, int]]:
    """The counts of TROUBLES that are not zero, by process."""
    found = {
        name: {key: int(count) for key in TROUBLES if (count := record.get(key, 0)) and math.isfinite(count)}
        for name, record in records.items()
    }
    return {name: counted for name, counted in found.items() if counted}


def _process(slot: ProcessState, supervisor: Supervisor) -> Document:
    usage = slot.process.usage() if slot.process else Usage()
    silent = supervisor.silent_seconds(slot)
    state = "paused" if slot.state == "ready" and slot.resting else slot.state
    return {
        "name": slot.name,
        "role": slot.spec.role,
        "pid": slot.process.pid if slot.process else None,
        "state": "silent" if silent is not None and silent > SILENT_SECONDS else state,
        "silent_seconds": None if silent is None else round(silent, 1),
        "restarts": slot.restarts,
        "last_exit": slot.last_exit,
        "steps_per_second": slot.record.get("steps_per_second"),
        "rss_bytes": usage.rss_bytes,
        "cpu_percent": usage.cpu_percent,
        "host": (slot.process.host or None) if slot.process else None,
    }


def _remote_actor(name: str, remote: RemoteActors) -> Document:
    actor = remote.known[name]
    unknown = dict.fromkeys(("pid", "last_exit", "rss_bytes", "cpu_percent", "host"))
    state, silent = "silent" if actor.silent else "remote", round(remote.silent_seconds(name), 1)
    speed = None if actor.silent else actor.record.get("steps_per_second")
    known = {"name": name, "role": "actor", "state": state, "silent_seconds": silent, "restarts": 0, "steps_per_second": speed}
    return known | unknown
