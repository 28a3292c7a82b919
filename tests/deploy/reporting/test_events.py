"""What happened to a run, found by comparing its status documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deploy.reporting.events import EventLog, between


def status(
    state: str = "running",
    troubles: dict[str, Any] | None = None,
    reason: str | None = None,
    because: str = "ordered by an operator",
    **process: Any,
) -> dict[str, Any]:
    known = {"name": "actor-0", "role": "actor", "state": "ready", "restarts": 0, "last_exit": None, "silent_seconds": 0.1}
    found: dict[str, Any] = {"time": 100.0, "state": state, "reason": reason, "paused_because": because}
    return found | {"processes": [known | process], "troubles": troubles or {}}


def kinds(before: dict[str, Any] | None, after: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(event.kind, event.process, event.text) for event in between(before, after)]


def test_a_restart_has_its_reason_and_is_one_event() -> None:
    died = status(restarts=1, last_exit="killed by SIGKILL", state="running") | {}
    assert kinds(status(), died) == [("restarted", "actor-0", "killed by SIGKILL")]
    assert kinds(died, died) == []


def test_a_process_that_is_given_up_is_not_also_restarted() -> None:
    given_up = status()
    given_up["processes"][0] |= {"state": "failed", "restarts": 6, "last_exit": "no module my_env"}
    assert kinds(status(), given_up) == [("abandoned", "actor-0", "no module my_env")]


def test_bad_input_is_counted_from_zero_again_by_a_process_that_was_started_again() -> None:
    some, more, again = (status(troubles={"learner": {"rollbacks": count}}) for count in (2, 5, 1))
    assert kinds(some, more) == [("rollbacks", "learner", "rollbacks: 3 more")]
    assert kinds(more, again) == [("rollbacks", "learner", "rollbacks: 1 more")]
    assert kinds(more, status()) == []


def test_a_pause_and_its_end_are_events_and_nothing_else_is() -> None:
    running, paused, starting, stopped = (status(state) for state in ("running", "paused", "starting", "stopped"))
    ordered = "supervisor", "ordered by an operator"
    assert kinds(running, paused) == [("paused", *ordered)] and kinds(paused, paused) == []
    assert kinds(paused, running) == kinds(paused, starting) == [("unpaused", *ordered)]
    alone = status("paused", because="on battery")
    assert kinds(running, alone) == [("paused", "supervisor", "on battery")]
    assert kinds(alone, running) == [("unpaused", "supervisor", "no longer on battery")]
    assert kinds(paused, status("stopping")) == []
    assert [kind for kind, _, _ in kinds(paused, stopped)] == ["stopped"]


def test_another_number_of_actors_is_an_event_and_the_end_of_a_run_is_not_one_too() -> None:
    one, three = status(), status()
    three["processes"] = [{**one["processes"][0], "name": f"actor-{index}"} for index in range(3)]
    leaving = status() | {"processes": [*one["processes"], *({**each, "state": "stopping"} for each in three["processes"][1:])]}
    assert kinds(one, three) == [("scaled", "supervisor", "from 1 to 3 actors")]
    assert kinds(three, leaving) == [("scaled", "supervisor", "from 3 to 1 actors")] and kinds(leaving, one) == []
    ending = {"state": "stopping", "processes": [{**each, "state": "stopping"} for each in three["processes"]]}
    assert kinds(three, three | ending) == []


def test_what_an_operator_has_ordered_is_an_event(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", limit_bytes=10_000, kept=1)
    log.turn(status(), [("checkpoint", "learner", "wrote epoch-3")])
    last = (tmp_path / "events.jsonl").read_text().splitlines()[-1]
    assert '"kind":"checkpoint","process":"learner","text":"wrote epoch-3"' in last


def test_start_and_end_are_events_and_the_file_is_rotated(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", limit_bytes=100, kept=1)
    log.turn(status("starting"))
    log.turn(status("running"))
    log.turn(status("failed", reason="learner failed"))
    assert "learner failed" in (tmp_path / "events.jsonl.1").read_text()  # each filled the file, and one old file is kept
    assert [path.stat().st_size for path in (tmp_path / "events.jsonl").parent.iterdir() if path.suffix == ".jsonl"] == [0]
