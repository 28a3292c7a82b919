"""A run of a trial: how it is started, and what is read of its files."""

from __future__ import annotations

import json
import os
import subprocess
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.children import child_environment, python_command
from deploy.places.base import Exit
from deploy.studies.sweep import trial_run
from deploy.studies.sweep.plan import Plan
from deploy.studies.sweep.study import Suggestion
from deploy.studies.sweep.trial_run import ChildRun, Runs, evaluations, remove_unfinished
from tests.deploy.studies.sweep.stubs import written_plan
from transport.lifetime import PARENT_VARIABLE
from transport.run_dir import RunDir


class StubChild:
    """As Child: runs nothing, and ends when the test says so."""

    made: list[StubChild]

    def __init__(self, name: str, command: list[str], environment: dict[str, str], on_line: Callable[[str, str], None]) -> None:
        self.name, self.command, self.environment, self.on_line = name, command, environment, on_line
        self.exit: Exit | None = None
        self.asked = False
        StubChild.made.append(self)

    def poll(self) -> Exit | None:
        return self.exit

    def ask(self) -> None:
        self.asked = True


@pytest.fixture(autouse=True)
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[StubChild]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trial_run, "Child", StubChild)
    monkeypatch.setattr(trial_run, "LOOK_SECONDS", 0.0)
    StubChild.made = []
    return StubChild.made


def run_of(plan: Plan, number: int = 3, index: int = 0) -> ChildRun:
    return Runs(plan, 1).start(Suggestion(number, {"algorithm.gamma": 0.5}), index, 0)


def write_status(run: RunDir, steps: int, when: float) -> None:
    status: dict[str, Any] = {"run": run.name, "state": "running", "env": "x", "algorithm": "dqn", "processes": []}
    status |= {"replay": {}, "learner": {}, "evaluation": {}, "steps": steps, "time": when}
    run.status.write_text(json.dumps(status))


def write_evaluations(run: RunDir, *records: dict[str, Any]) -> None:
    with run.metrics("evaluator").open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def test_a_run_is_a_headrace_up_in_the_sweeps_folder_that_ends_with_this_process(tmp_path: Path, stubs: list[StubChild]) -> None:
    run_of(written_plan(tmp_path, seeds=2, steps=5000), index=1)
    (child,) = stubs
    module, folder, cores, *words = child.command[child.command.index("-m") + 1 :]
    assert (module, Path(folder), cores) == ("deploy.cli.trial", tmp_path / "sweeps/mine/runs", "")
    settings = str(Path("sweeps/mine/settings/trial-3-seed-2.toml"))
    assert words == [
        *("up", "--run", "trial-3-seed-2", "--config", settings, "--seed", "2"),
        *("--stop-after", "100.0s", "--total-steps", "5000"),
    ]
    assert tomllib.loads(Path(settings).read_text()) == {"env": {"id": "CartPole-v1"}, "algorithm": {"gamma": 0.5}}
    assert child.environment[PARENT_VARIABLE] == str(os.getpid())


@pytest.mark.parametrize(("usable", "bound"), [(5, ["0,2", "3,4"]), (2, ["", ""])], ids=["all", "quota"])
def test_trials_at_once_have_cores_of_their_own_and_as_many(
    usable: int, bound: list[str], tmp_path: Path, stubs: list[StubChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_run, "own_cores", lambda: [0, 2, 3, 4, 7])
    monkeypatch.setattr(trial_run, "core_count", lambda: usable)
    runs = Runs(written_plan(tmp_path), 2)
    for place in (0, 1):
        runs.start(Suggestion(place, {}), 0, place)
    assert [child.command[child.command.index("up") - 1] for child in stubs] == bound


def test_progress_and_evaluations_count_from_the_first_step(tmp_path: Path, stubs: list[StubChild]) -> None:
    run, began = run_of(written_plan(tmp_path)), time.time()
    folder = RunDir(tmp_path / "sweeps/mine/runs/trial-3")
    assert run.look().evaluations == [] and run.look().progress == 0, "nothing is there yet"
    folder.create()
    write_status(folder, 0, began)
    assert run.look().progress == 0
    write_status(folder, 40, began - 30)
    write_evaluations(folder, {"time": began - 20, "policy_version": 2, "return_mean": 7.5})
    view = run.look()
    assert view.progress == pytest.approx(0.3, abs=0.1) and not view.ended and view.evaluations == [(pytest.approx(10), 40, 7.5)]
    write_status(folder, 90, began)
    write_evaluations(folder, {"time": began, "policy_version": 3, "return_mean": 9.0})
    assert [each.steps for each in run.look().evaluations] == [40, 90]
    stubs[0].exit = Exit(0)
    write_status(folder, 400, began + 300)
    view = run.look()
    assert view.ended and view.fault == "" and view.seconds == 100.0, "without the time that it took to stop"
    assert not folder.segments.exists() and folder.metrics("evaluator").exists()


@pytest.mark.parametrize(
    ("line", "end", "fault"),
    [
        (
            "headrace: run trial-3 failed: the learner was abandoned",
            Exit(1, "x"),
            "run trial-3 failed: the learner was abandoned",
        ),
        ("anything", Exit(-9, "anything"), "killed by SIGKILL"),
        ("anything", Exit(-9, "anything", out_of_memory=True), "out of memory: killed by the kernel"),
        ("Segmentation fault", Exit(139, "Segmentation fault"), "exit 139: Segmentation fault"),
    ],
)
def test_why_a_run_failed_is_one_line(tmp_path: Path, stubs: list[StubChild], line: str, end: Exit, fault: str) -> None:
    run = run_of(written_plan(tmp_path))
    stubs[0].on_line("trial-3", line)
    stubs[0].on_line("trial-3", "another line")
    stubs[0].exit = end
    assert run.look().ended and run.look().fault == fault


def test_an_evaluation_counts_once_and_only_with_a_number(tmp_path: Path) -> None:
    path = tmp_path / "evaluator.jsonl"
    assert evaluations(path, "return_mean") == []
    records = [
        {"time": 1.0},
        {"time": 2.0, "policy_version": 1, "return_mean": 5.0},
        {"time": 3.0, "policy_version": 1, "return_mean": 5.0},
        {"time": 4.0, "policy_version": 2, "return_mean": None},
        {"time": 5.0, "policy_version": 3, "return_mean": 6.0, "success_rate": 0.5},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"time": 6.0, "policy_ver')
    assert evaluations(path, "return_mean") == [(2.0, 5.0), (5.0, 6.0)]
    assert evaluations(path, "success_rate") == [(5.0, 0.5)]


def test_what_a_killed_sweep_left_of_unfinished_trials_is_deleted(tmp_path: Path) -> None:
    plan = written_plan(tmp_path)
    folders = [RunDir(plan.folder / "runs" / name) for name in ("trial-0", "trial-1")]
    for folder in folders:
        folder.create()
    remove_unfinished(plan, {"trial-0"})
    assert [folder.path.exists() for folder in folders] == [True, False]


def test_the_module_of_a_trial_makes_its_runs_in_the_folder_that_it_is_given(tmp_path: Path) -> None:
    command = python_command("deploy.cli.trial", str(tmp_path / "there"), "", "status")
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 2 and f"there is no run in {tmp_path / 'there'}/ yet" in done.stderr
