"""The counts of bad input in the status."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from deploy.config.run import RunConfig
from deploy.process_spec import ProcessSpec
from deploy.recorded.status import as_dead, empty
from deploy.reporting.base import Point
from deploy.reporting.remote import RemoteActors
from deploy.reporting.status_file import read_document
from deploy.supervision import reports, status
from deploy.supervision.curriculum import Curriculum
from deploy.supervision.processes import ProcessState
from deploy.supervision.reports import Reports
from deploy.views.terminal import summary
from deploy.views.terminal.summary import show
from transport.messages.control import Progress
from transport.run_dir import RunDir


def test_bad_input_is_counted_for_its_process_and_only_where_there_is_some() -> None:
    records = {
        "actor-0": {"steps": 9.0, "broken_episodes": 3.0},
        "actor-1": {"steps": 9.0, "broken_episodes": 0.0, "rejected_weights": float("nan")},
        "learner": {"skipped_updates": 2.0, "rollbacks": 1.0},
    }
    found = status.troubles(records)
    assert found == {"actor-0": {"broken_episodes": 3}, "learner": {"skipped_updates": 2, "rollbacks": 1}}
    document = empty("mine", "mario", "dqn")
    shown = []
    for troubles in ({}, found):
        console = Console(file=io.StringIO(), width=200)
        show(document | {"troubles": troubles}, console)
        shown.append(console.file.getvalue())  # type: ignore[attr-defined]
    assert "trouble" not in shown[0]
    assert "trouble  actor-0: broken episodes 3\n" in shown[1] and "learner: skipped updates 2 · rollbacks 1\n" in shown[1]


def test_hosts_and_their_actors_are_shown_and_outlive_the_supervisor() -> None:
    document = empty("mine", "mario", "dqn")
    process = {
        "role": "actor",
        "silent_seconds": 0.1,
        "last_exit": None,
        "steps_per_second": 50.0,
        "restarts": 0,
        "cpu_percent": 9.0,
    }
    here = process | {"name": "actor-0", "state": "ready", "pid": 7, "rss_bytes": 2**20, "cpu_percent": 9.0, "host": None}
    there = here | {"name": "actor-1", "host": "host-3"}
    host = {"name": "host-3", "state": "silent", "places": 4, "actors": 1, "silent_seconds": 3.2}
    document |= {"processes": [here, there], "hosts": [host], "state": "running"}
    for number, shown in enumerate((document, document | {"processes": [here], "hosts": []}, as_dead(document))):
        console = Console(file=io.StringIO(), width=200)
        show(shown, console)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert ("host-3: silent · 1 of 4 places · not heard for 3 s" in text) == (number == 0)
        assert (" host " in text.splitlines()[1]) == (number != 1)
    states = [each["state"] for each in as_dead(document)["processes"]]
    assert states == ["dead", "unsupervised"]


def test_hosts_that_are_waited_for_are_one_line() -> None:
    hosts = [
        {"name": f"host-{number}", "state": "waiting", "places": 8, "actors": 0, "silent_seconds": None} for number in range(256)
    ]
    console = Console(file=io.StringIO(), width=300)
    show(empty("mine", "mario", "dqn") | {"hosts": hosts}, console)
    lines = [line for line in console.file.getvalue().splitlines() if "host-" in line]  # type: ignore[attr-defined]
    assert lines == [", ".join(f"host-{number}" for number in range(10)) + " and 246 more: waiting · 2,048 places"]


@pytest.mark.parametrize("stopping", [False, True])
def test_the_last_figures_stay_when_a_run_is_over_and_only_then(stopping: bool, tmp_path: Path) -> None:
    spec = ProcessSpec("learner", "learner", "learner", ())
    slot = ProcessState(spec, state="stopped" if stopping else "restarting", last_record={"epoch": 7.0, "updates": 140.0})
    supervisor: Any = SimpleNamespace(
        slots=[slot],
        stopping=stopping,
        finished=stopping,
        exit_status=0,
        reason="",
        all_ready=True,
        silent_seconds=lambda _: None,
    )
    remote = RemoteActors(lambda: 0.0, lambda name, text: None)
    remote.on_progress(Progress("actor-100", 7, "ready", 1, {"steps_per_second": 50.0, "broken_episodes": 3.0}))
    found = status.document(RunDir(tmp_path), RunConfig(), {}, supervisor, remote, 5.0, 0.0, {})
    assert [process["name"] for process in found["processes"]] == ["learner"] + ["actor-100"] * (not stopping)
    if not stopping:
        assert found["processes"][1] | {"state": "remote", "steps_per_second": 50.0, "pid": None} == found["processes"][1]
        assert found["troubles"]["actor-100"] == {"broken_episodes": 3}
    assert found["learner"]["updates"] == (140 if stopping else None)
    assert found["processes"][0]["steps_per_second"] is None


def test_an_inference_process_is_shown_where_there_is_one(tmp_path: Path) -> None:
    slots = [ProcessState(ProcessSpec(name, name, name, ()), state="ready") for name in ("replay", "inference")]
    states = {"stopping": False, "finished": False, "all_ready": True, "exit_status": 0, "reason": ""}
    remote = RemoteActors(lambda: 0.0, lambda name, text: None)
    shown = []
    for number, record in enumerate(({}, {}, {"rows_per_second": 1234.5, "rows_per_pass": 16.04, "policy_version": 7.0})):
        slots[1].record = record
        supervisor: Any = SimpleNamespace(slots=slots[: 1 + bool(number)], silent_seconds=lambda _: None, **states)
        found = status.document(RunDir(tmp_path), RunConfig(), {}, supervisor, remote, 5.0, 0.0, {})
        shown.append(found.get("inference"))
        console = Console(file=io.StringIO(), width=200)
        show(found, console)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert ("inference 1,234 rows/s · 16.0 rows a pass" in text) == (number == 2)
        read = read_document(json.dumps(found).encode())
        assert read is not None and read.get("inference") == found.get("inference")
    unknown = dict.fromkeys(("rows_per_second", "rows_per_pass", "policy_version"))
    assert shown == [None, unknown, {"rows_per_second": 1234.5, "rows_per_pass": 16.04, "policy_version": 7}]


def test_the_points_of_sinks_have_the_actors_on_other_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points: list[Point] = []
    sinks = SimpleNamespace(write=points.append)
    monkeypatch.setattr(reports, "Sinks", lambda *given: sinks)
    here = ProcessState(ProcessSpec("actor-0", "actor", "actors", ()), record={"steps_per_second": 10.0})
    remote = RemoteActors(lambda: 0.0, lambda name, text: None)
    remote.on_progress(Progress("actor-100", 7, "ready", 1, {"steps_per_second": 50.0}))
    supervisor: Any = SimpleNamespace(slots=[here])
    log: Any = SimpleNamespace(line=print)
    curriculum: Any = SimpleNamespace(levels=0)
    orders: Any = SimpleNamespace(paused_since=None)
    Reports(RunDir(tmp_path), RunConfig(), log, supervisor, remote, curriculum, orders).write_point(5.0)
    assert (points[0].values["time/fps"], points[0].values["actor/100/fps"]) == (60.0, 50.0)


@pytest.mark.parametrize(("state", "shown"), [("ready", "paused"), ("starting", "starting"), ("restarting", "restarting")])
def test_a_paused_run_and_its_processes_say_so(state: Any, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "time", SimpleNamespace(time=lambda: 1_000.0))
    slot = ProcessState(ProcessSpec("learner", "learner", "learner", ()), state=state, resting=True)
    supervisor: Any = SimpleNamespace(
        slots=[slot], stopping=False, finished=False, exit_status=0, reason="", all_ready=True, silent_seconds=lambda _: None
    )
    remote = RemoteActors(lambda: 0.0, lambda name, text: None)
    found = status.document(RunDir(tmp_path), RunConfig(), {}, supervisor, remote, 500.0, 0.0, {}, 910.0)
    assert found["state"] == "paused" and found["processes"][0]["state"] == shown
    console = Console(file=io.StringIO(), width=200)
    show(found, console)
    assert f"{tmp_path.name}: paused for 90 s · mario" in console.file.getvalue()  # type: ignore[attr-defined]
    dead = as_dead(found | {"flow": found["flow"] | {"blocked": "batches"}})
    assert dead["paused_since"] is None and dead["flow"]["blocked"] == "" and dead["flow"]["actors"] == 0
    supervisor.stopping = True
    assert status.run_state(supervisor, paused=True) == "stopping"


def test_a_paused_run_is_limited_by_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "Sinks", lambda *given: None)
    supervisor: Any = SimpleNamespace(
        slots=[], stopping=False, finished=True, exit_status=0, reason="", all_ready=True, silent_seconds=lambda _: None
    )
    log: Any = SimpleNamespace(line=print)
    orders: Any = SimpleNamespace(paused_since=1e9, answered=[], because="ordered by an operator")
    remote, curriculum = RemoteActors(lambda: 0.0, lambda name, text: None), Curriculum(tmp_path / "curriculum")
    made = Reports(RunDir(tmp_path), RunConfig(), log, supervisor, remote, curriculum, orders)
    made._limit = "simulators"
    found = []
    for paused_since, stopping in ((1e9, False), (1e9, True), (None, False)):
        orders.paused_since, supervisor.stopping = paused_since, stopping
        made.write_status(RunConfig(), 5.0, 1)
        found.append(json.loads((tmp_path / "status.json").read_bytes())["bottleneck"])
    assert found[0].startswith("paused since 2001-09-0") and found[0].endswith(" · go on with headrace unpause")
    assert found[1:] == ["simulators", "simulators"]
    orders.paused_since, orders.because = 1e9, "on battery"
    assert made._pause().endswith(" · on battery; it goes on by itself (deploy.pause_on)")


def test_a_run_that_is_over_says_since_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "time", SimpleNamespace(time=lambda: 1_000.0))
    console = Console(file=io.StringIO(), width=200)
    show(empty("mine", "mario", "dqn") | {"time": 997.0, "uptime_seconds": 90.0}, console)
    assert console.file.getvalue().startswith("mine: stopped 3 s ago · mario")  # type: ignore[attr-defined]


def test_what_a_process_said_last_is_shown_letter_by_letter() -> None:
    """A simulator may say anything; rich would take the first for a closing tag, which ends the command with a traceback."""
    said = "exit 1: no tag [/INST], no [red] colour, no :bug: and no \x1b[2J"
    process: dict[str, Any] = {"name": "actor-0", "state": "restarting", "restarts": 1, "last_exit": said}
    process |= dict.fromkeys(("pid", "steps_per_second", "rss_bytes", "cpu_percent"))
    document = empty("mine", "mario", "dqn") | {"processes": [process], "state": "failed", "reason": f"actor-0: {said}"}
    console = Console(file=io.StringIO(), width=200)
    show(document, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("exit 1: no tag [/INST], no [red] colour, no :bug: and no") == 2 and "\x1b" not in text
