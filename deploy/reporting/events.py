"""The events of a run, with times: starts, ends, restarts with their reasons, bad input. Lines of JSON: events.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from transport.files.writing import append

Document = Mapping[str, Any]
OVER = ("stopped", "failed")
BY_OPERATOR = "ordered by an operator"


class RunEvent(Struct, frozen=True):
    """`kind` is a state of the run (`started`, `running`, `paused`, `unpaused`, `stopped`, `failed`), `scaled`, `restarted`,
    `abandoned` or `silent` of a process, `checkpoint` or `evaluate` where an operator has ordered one, `forked` where the run
    begins as a fork, `steered` or `handed_back` of an actor by a person, or a count of `deploy.supervision.status.TROUBLES`, such
    as `rollbacks`."""

    time: float  # seconds since 1970
    kind: str
    process: str
    text: str
    count: int = 1


def between(before: Document | None, after: Document) -> Iterator[RunEvent]:
    """The events between two status documents of a run; `before` is None when the supervisor has just begun."""
    time = float(after["time"])
    if before is None:
        yield RunEvent(time, "started", "supervisor", "the supervisor has started")
        before = {"state": "starting", "processes": [], "troubles": {}}
    state, earlier = after["state"], before["state"]
    if state == "paused" != earlier:
        yield RunEvent(time, "paused", "supervisor", after["paused_because"])
    elif earlier == "paused" and state in ("starting", "running"):
        why = before["paused_because"]
        yield RunEvent(time, "unpaused", "supervisor", why if why == BY_OPERATOR else f"no longer {why}")
    elif state != earlier and state in ("running", *OVER):
        yield RunEvent(time, state, "supervisor", after.get("reason") or "every process is ready")
    known = {process["name"]: process for process in before["processes"]}
    actors, wanted = _actors(before), _actors(after)
    if actors and wanted != actors and state not in OVER and state != "stopping":
        yield RunEvent(time, "scaled", "supervisor", f"from {actors} to {wanted} actors")
    for process in after["processes"]:
        yield from _of_process(known.get(process["name"], {}), process, time)
    for name, counted in after["troubles"].items():
        for kind, count in counted.items():
            earlier = before["troubles"].get(name, {}).get(kind, 0)
            more = count - earlier if count >= earlier else count  # a process that was started again counts from 0
            if more:
                yield RunEvent(time, kind, name, f"{kind.replace('_', ' ')}: {more:,} more", more)


def _actors(document: Document) -> int:
    """How many actors the run has, without those that are to leave."""
    return sum(one.get("role") == "actor" and one["state"] != "stopping" for one in document["processes"])


def _of_process(before: Document, after: Document, time: float) -> Iterator[RunEvent]:
    name, reason = after["name"], after["last_exit"] or "it ended"
    if after["state"] == "failed" and before.get("state") != "failed":
        yield RunEvent(time, "abandoned", name, reason)
    elif after["restarts"] > before.get("restarts", 0):
        yield RunEvent(time, "restarted", name, reason)
    if after["state"] == "silent" and before.get("state") != "silent":
        yield RunEvent(time, "silent", name, f"no report for {after['silent_seconds']:.0f} s")


class EventLog:
    """Appends the events of a run to its file."""

    def __init__(self, path: Path, limit_bytes: int, kept: int) -> None:
        """At `limit_bytes` the file becomes NAME.1; `kept` old ones stay."""
        self._path, self._limit_bytes, self._kept = path, limit_bytes, kept
        self._before: Document | None = None

    def turn(self, document: Document, ordered: Iterable[tuple[str, str, str]] = ()) -> None:
        """Takes the newest status document, and the orders that were carried out since: kind, process, answer. On a full disk
        events are lost."""
        events = [*between(self._before, document), *(RunEvent(float(document["time"]), *one) for one in ordered)]
        found = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        self._before = document
        if not found:
            return
        try:
            if append(self._path, found, self._limit_bytes, self._kept):
                self._path.touch()
        except OSError:
            pass
