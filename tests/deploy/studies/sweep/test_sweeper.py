"""The loop of a sweep over made-up runs: how trials begin, end early, fail, and are tried again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from deploy.studies.sweep.study import AGAIN, JOURNAL, Study, repair
from deploy.studies.sweep.sweeper import FAILURES_IN_A_ROW, OVER, OVERTIME_SECONDS
from tests.deploy.studies.sweep.stubs import SECONDS, StubRuns, StubSweep, written_plan


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def gammas(study: Study) -> list[float]:
    return [trial.values["algorithm.gamma"] for trial in study.trials()]


def test_every_trial_gets_its_time_and_the_best_is_the_one_with_the_best_last_evaluations(folder: Path) -> None:
    made = StubSweep(written_plan(folder, trials=5), jobs=2)
    made.turns()
    trials = made.study.ranked()
    assert [trial.state for trial in trials] == ["complete"] * 5 and len(made.runs.started) == 5
    assert [trial.values["algorithm.gamma"] for trial in trials] == sorted(gammas(made.study), reverse=True)
    best = made.study.best()
    assert best == trials[0] and best.value == pytest.approx(best.values["algorithm.gamma"] * (0.8 + 0.9 + 1.0) / 3)
    assert [line.split()[2] for line in made.lines].count("begins:") == 5 and "5 of 5" in made.lines[-1]
    evaluations = best.result["runs"][0]["evaluations"]
    assert len(evaluations) == 10 and evaluations[-1][:2] == [100.0, 5000]


@pytest.mark.parametrize(("pruner", "more"), [("median", {}), ("halving", {}), ("median", {"time_to": 2.0})])
def test_a_trial_that_is_worse_than_others_were_is_ended_early(folder: Path, pruner: str, more: dict[str, float]) -> None:
    """Also where a time is minimised."""
    made = StubSweep(written_plan(folder, trials=14, pruner=f'"{pruner}"', sampler='"random"', **more))
    made.turns()
    trials = made.study.trials()
    pruned = [trial for trial in trials if trial.state == "pruned"]
    assert len(pruned) >= 3 and len(pruned) + sum(trial.state == "complete" for trial in trials) == 14
    for trial in pruned:
        run = made.runs.started[trial.number]
        assert run.stopped_after is not None and run.stopped_after < SECONDS
        before = [other.values["algorithm.gamma"] for other in trials[: trial.number] if other.state == "complete"]
        assert trial.values["algorithm.gamma"] < max(before) and trial.value is None
        if pruner == "median":
            assert len(before) >= 4 and trial.values["algorithm.gamma"] < median(before)
    assert [trial.state for trial in made.study.ranked()][: 14 - len(pruned)] == ["complete"] * (14 - len(pruned))
    assert any(f"trial {pruned[0].number} pruned after 20 s: return_mean " in line for line in made.lines)


def test_many_failures_in_a_row_end_the_sweep_with_the_reason_and_running_trials_are_kept(folder: Path) -> None:
    made = StubSweep(written_plan(folder, trials=20), jobs=2)
    made.runs.faults = {number: "no memory left" for number in range(1, 20)}
    made.turns(seconds=1)
    assert made.runner.finished and f"{FAILURES_IN_A_ROW} trials in a row have failed" in made.runner.reason
    assert "no memory left" in made.runner.reason and not made.runs.alive
    again = StubSweep(made.plan)
    states = [trial.state for trial in again.study.trials()]
    assert states.count("failed") == FAILURES_IN_A_ROW
    assert states.count("waiting") == 1, "trial 0 was under way, and is tried again"
    again.turns()
    assert again.sweeper.done == 20 and again.runner.reason == ""


def fault(runs: StubRuns) -> None:
    runs.faults = {1: "the learner was abandoned"}


def blindness(runs: StubRuns) -> None:
    runs.blind = True


def no_end(runs: StubRuns) -> None:
    runs.endless = {0}


def no_stop(runs: StubRuns) -> None:
    runs.stubborn, runs.endless = True, {0}


@pytest.mark.parametrize(
    ("trouble", "number", "reason"),
    [
        (fault, 1, "the learner was abandoned"),
        (blindness, 0, "evaluator.core_share"),  # no evaluation was done: what to change
        (no_end, 0, f"{OVERTIME_SECONDS:.0f} s after its time"),
        (no_stop, 0, f"{OVERTIME_SECONDS:.0f} s after its time"),
    ],
)
def test_a_run_that_fails_is_recorded_with_its_reason_and_the_sweep_goes_on(
    folder: Path, trouble: Callable[[StubRuns], None], number: int, reason: str
) -> None:
    made = StubSweep(written_plan(folder, trials=3))
    trouble(made.runs)
    made.turns(seconds=10)
    trials = made.study.trials()
    assert trials[number].state == "failed" and reason in trials[number].result["reason"] and made.runner.reason == ""
    assert [trial.state == "complete" for trial in trials].count(True) == (0 if trouble is blindness else 2)
    assert any(line.startswith(f"trial {number} failed: ") and f"{number + 1} of 3" in line for line in made.lines)
    assert made.runs.started[number].killed == (trouble is no_stop) and not made.runs.alive


def test_a_trial_with_several_seeds_is_the_mean_of_its_runs(folder: Path) -> None:
    made = StubSweep(written_plan(folder, trials=2, seeds=3))
    made.turns()
    assert [(run.suggestion.number, run.index) for run in made.runs.started] == [(n, i) for n in (0, 1) for i in (0, 1, 2)]
    for trial in made.study.trials():
        values = [run["value"] for run in trial.result["runs"]]
        assert [run["seed"] for run in trial.result["runs"]] == [1, 2, 3]
        assert trial.value == pytest.approx(sum(values) / 3)


def test_the_time_to_a_score_is_that_of_the_first_of_several_evaluations_and_ends_the_trial(folder: Path) -> None:
    made = StubSweep(written_plan(folder, trials=1, time_to=0.5), runs=StubRuns(lambda values: 1.0))
    made.turns()
    (trial,) = made.study.trials()
    assert trial.value == 50.0 and made.runs.started[0].stopped_after == pytest.approx(70, abs=6)
    assert "trial 0 ended: return_mean 0.5 after 50.0 s" in made.lines[-1]


def test_a_trial_that_has_reached_the_score_counts_however_its_run_ends(folder: Path) -> None:
    made = StubSweep(written_plan(folder, trials=1, time_to=0.5), runs=StubRuns(lambda values: 1.0))
    made.runs.stubborn, made.runs.endless = True, {0}
    made.turns()
    (trial,) = made.study.trials()
    assert made.runs.started[0].killed and (trial.state, trial.value) == ("complete", 50.0)


def test_a_trial_that_does_not_reach_the_score_counts_as_its_whole_time_and_the_shortest_time_is_best(folder: Path) -> None:
    made = StubSweep(written_plan(folder, trials=8, time_to=0.4, sampler='"random"'))
    made.turns()
    ranked = made.study.ranked()
    assert [trial.value for trial in ranked] == sorted(trial.value or 0 for trial in ranked)
    best = made.study.best()
    assert best is not None and best.value is not None and best.value < SECONDS
    assert best.values["algorithm.gamma"] == max(gammas(made.study))
    missed = [trial for trial in ranked if trial.values["algorithm.gamma"] < 0.4]
    assert missed and all(trial.value == SECONDS for trial in missed)
    assert any("not reached" in line for line in made.lines)


def test_a_killed_sweep_tries_the_trials_that_were_running_again_and_no_other(folder: Path) -> None:
    plan = written_plan(folder, trials=6)
    killed = StubSweep(plan, jobs=2)
    killed.turns(30)  # two trials are over, two are under way
    before = {trial.number: trial for trial in killed.study.trials()}
    assert [trial.state for trial in before.values()] == ["complete", "complete", "running", "running"]
    resumed = StubSweep(plan, jobs=2)
    assert resumed.lines == ["trials 2, 3 had not ended; the same settings are tried again"]
    resumed.turns()
    after = {trial.number: trial for trial in resumed.study.trials()}
    assert sorted(after) == [0, 1, 4, 5, 6, 7] and {trial.state for trial in after.values()} == {"complete"}
    assert after[0] == before[0] and after[1] == before[1]
    assert [after[4].values, after[5].values] == [before[2].values, before[3].values]
    assert len({trial.values["algorithm.gamma"] for trial in after.values()}) == 6, "each setting once"


def test_wherever_a_sweep_is_killed_nothing_is_lost_and_nothing_is_doubled(folder: Path) -> None:
    plan = written_plan(folder, trials=3)
    StubSweep(plan, jobs=2).turns(25)
    StubSweep(plan, jobs=2).turns(25)  # this one has repeated trials
    path, kept = plan.folder / JOURNAL, folder / "kept"
    shutil.copy(path, kept)
    content = kept.read_bytes()
    ends = [place + 1 for place, letter in enumerate(content) if letter == 10]
    assert len(ends) > 30
    for end in ends[1:]:
        path.write_bytes(content[: end + (7 if end % 2 and end < len(content) else 0)])  # half a line, too
        Path(f"{path}.lock").touch()
        repair(path)
        over = {trial.number: trial for trial in Study(plan).trials() if trial.state in OVER}
        last = StubSweep(plan, jobs=2)
        last.turns(seconds=50)
        trials = last.study.trials()
        assert [trial.state for trial in trials] == ["complete"] * 3
        assert all(trial == over.get(trial.number, trial) for trial in trials) and over.keys() <= {t.number for t in trials}
        again = [trial.user_attrs[AGAIN] for trial in last.study._study.get_trials() if AGAIN in trial.user_attrs]
        assert len(again) == len(set(again)) and len(set(gammas(last.study))) == 3


def test_an_interrupt_stops_the_runs_in_order_and_their_trials_are_tried_again(folder: Path) -> None:
    made = StubSweep(written_plan(folder), jobs=2)
    made.turns(8)
    values = gammas(made.study)
    made.runner.run([2])
    assert made.runner.interrupted and made.runner.finished and not made.runs.alive
    assert all(run.removed and not run.killed for run in made.runs.started)
    assert [trial.state for trial in made.study.trials()] == ["waiting", "waiting"] and gammas(made.study) == values
    again = StubSweep(made.plan, jobs=2)
    assert again.lines == []
    again.turns()
    assert gammas(again.study)[:2] == values and again.sweeper.done == 4


def test_more_trials_go_on_where_the_first_ones_ended_with_other_values(folder: Path) -> None:
    first = StubSweep(written_plan(folder, trials=3))
    first.turns()
    more = StubSweep(first.with_trials(6))
    more.turns()
    assert [trial.state for trial in more.study.trials()] == ["complete"] * 6
    assert len(set(gammas(more.study))) == 6, "the sampler does not begin with the same values again"
    fewer = StubSweep(first.with_trials(2))
    fewer.turns()
    assert not fewer.runs.started


def test_what_matters_is_told_once_there_are_enough_trials(folder: Path) -> None:
    made = StubSweep(written_plan(folder, trials=3))
    made.turns()
    assert made.study.importance() == {}
    more = StubSweep(made.with_trials(9))
    more.turns()
    assert more.study.importance() == {"algorithm.gamma": 1.0}
