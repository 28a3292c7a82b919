"""`headrace sweep` as it is typed, over made-up runs."""

from __future__ import annotations

import json
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest

from deploy.cli import main as cli
from deploy.cli.runs import sweep
from deploy.studies.jobs import JobRunner
from deploy.studies.sweep import folder as sweep_folder
from deploy.studies.sweep.check import CheckedPlan
from deploy.studies.sweep.plan import Plan
from deploy.studies.sweep.sweeper import Sweeper
from learner.devices import installing
from tests.deploy.studies.sweep.stubs import StubRuns, written_plan


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> StubRuns:
    """Made-up runs in the place of real ones; nothing is checked, and a turn takes no time."""
    made = StubRuns()

    monkeypatch.setattr(sweep, "Sweeper", partial(Sweeper, clock=lambda: made.now))
    monkeypatch.setattr(sweep, "JobRunner", partial(JobRunner, clock=lambda: made.now, pause=lambda seconds: made.pass_time(20)))
    monkeypatch.setattr(sweep, "Runs", lambda plan, jobs: made)
    monkeypatch.setattr(sweep, "check", lambda plan: CheckedPlan(plan, 1e6, 3))
    return made


def test_a_sweep_prints_its_trials_and_writes_the_best_settings_as_a_file_for_a_run(
    folder: Path, runs: StubRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = written_plan(folder, jobs=1)
    assert cli.main(["sweep", "mine.toml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"sweep mine in {Path('sweeps/mine')}: 4 trials to do, 1 at once")
    rows = [line.split() for line in lines if line.split()[1:2] == ["complete"]]
    values = [float(row[2]) for row in rows]
    assert len(rows) == 4 and values == sorted(values, reverse=True)
    best = tomllib.loads((plan.folder / "best.toml").read_text())
    assert best["env"] == {"id": "CartPole-v1"} and f"{best['algorithm']['gamma']:.4g}" == rows[0][-1]
    assert f"gamma = {best['algorithm']['gamma']}" in lines and lines[-1] == f"headrace up --config {plan.folder / 'best.toml'}"
    assert cli.main(["sweep", "mine.toml"]) == 0, "it is over: nothing starts"
    assert len(runs.started) == 4


def test_json_is_strict_and_alone_on_stdout(folder: Path, runs: StubRuns, capsys: pytest.CaptureFixture[str]) -> None:
    written_plan(folder, jobs=1)
    runs.faults = {2: "no memory left"}
    assert cli.main(["sweep", "mine.toml", "--json"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert "trial 0 begins" in told.err
    assert (found["done"], found["wanted"], found["direction"], found["seconds"]) == (4, 4, "maximize", 100.0)
    assert found["best"]["trial"] == found["trials"][0]["trial"] and found["trials"][-1]["reason"] == "no memory left"
    assert found["trials"][0]["runs"][0]["evaluations"][-1][0] == 100.0
    assert cli.main(["sweep", "mine.toml", "--show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_show_starts_nothing_and_needs_trials(folder: Path, runs: StubRuns, capsys: pytest.CaptureFixture[str]) -> None:
    written_plan(folder, jobs=1)
    assert cli.main(["sweep", "mine.toml", "--show"]) == 2
    assert "sweep mine has not begun; start it with `headrace sweep mine.toml`" in capsys.readouterr().err
    assert cli.main(["sweep", "mine.toml"]) == 0
    before = capsys.readouterr().out
    assert cli.main(["sweep", "mine.toml", "--show"]) == 0
    assert before.endswith(capsys.readouterr().out) and len(runs.started) == 4


def test_many_failures_end_it_with_status_1_and_say_how_to_go_on(
    folder: Path, runs: StubRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    written_plan(folder, trials=9, jobs=1)
    runs.faults = dict.fromkeys(range(9), "the disk is full")
    assert cli.main(["sweep", "mine.toml"]) == 1
    error = capsys.readouterr().err
    assert "5 trials in a row have failed, the last one: the disk is full; `headrace sweep mine.toml` resumes it" in error
    assert error.count("\n") == 1


def test_a_sweep_of_which_no_trial_is_complete_has_failed(
    folder: Path, runs: StubRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    written_plan(folder, trials=2, jobs=1)
    runs.blind = True
    assert cli.main(["sweep", "mine.toml"]) == 1
    told = capsys.readouterr()
    assert told.err == "headrace: sweep mine failed: no trial is complete\n" and "trial 1 failed: no evaluation" in told.out
    assert not (folder / "sweeps" / "mine" / "best.toml").exists()


def test_two_sweeps_on_one_folder_are_refused(folder: Path, runs: StubRuns, capsys: pytest.CaptureFixture[str]) -> None:
    plan = written_plan(folder, jobs=1)
    with sweep_folder.locked(plan):
        assert cli.main(["sweep", "mine.toml"]) == 3
    assert "sweep mine is running already (pid " in capsys.readouterr().err and not runs.started
    assert cli.main(["sweep", "mine.toml"]) == 0


def test_trials_of_another_task_are_not_mixed_but_there_may_be_more(
    folder: Path, runs: StubRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    written_plan(folder, jobs=1)
    assert cli.main(["sweep", "mine.toml"]) == 0
    written_plan(folder, jobs=1, seeds=2)
    capsys.readouterr()
    assert cli.main(["sweep", "mine.toml"]) == 2
    error = capsys.readouterr().err
    assert f"sweep.seeds is 2, and the trials in {Path('sweeps/mine')} were made with 1: give the file another name" in error
    assert cli.main(["sweep", "mine.toml", "--show"]) == 2
    written_plan(folder, jobs=1, trials=6, pruner='"halving"')
    assert cli.main(["sweep", "mine.toml"]) == 0 and len(runs.started) == 6


def test_without_optuna_one_line_names_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = written_plan(folder)
    plan.folder.rmdir()
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert cli.main(["sweep", "mine.toml"]) == 2
    assert capsys.readouterr().err == (
        f"headrace: `headrace sweep` needs optuna, which is not installed: {installing.headrace('sweep')}\n"
    )
    assert not plan.folder.exists()


def test_a_mistake_leaves_no_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan: Plan = written_plan(folder)
    plan.folder.rmdir()
    plan.folder.parent.rmdir()
    path = folder / "mine.toml"
    path.write_text(path.read_text().replace("high = 1.0", "high = 2.0"))
    assert cli.main(["sweep", "mine.toml"]) == 2
    assert capsys.readouterr().err == "headrace: mine.toml: search: algorithm.gamma: expected float <= 1.0, got 2.0\n"
    assert not Path("sweeps").exists()
    assert cli.main(["sweep", "nowhere.toml"]) == 2 and "cannot read nowhere.toml" in capsys.readouterr().err
