"""Runs one after the other, what is left of a suite that was killed, and the files of results.

Trainings are stubs. Evaluations are stubs, too, except where a test says Runner: a real one starts two processes and a simulator.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from actors.evaluation.lines import read_lines
from deploy import provenance
from deploy.errors import ConfigError
from deploy.studies import jobs
from deploy.studies.suite import headrace, runner
from deploy.studies.suite.base import SnapshotFile, SuiteFolder
from deploy.studies.suite.file import read
from deploy.studies.suite.runner import RunJob, Runner
from deploy.studies.suite.summary import summarise
from tests.deploy.studies.suite.stub import Stub, StubJob, StubRunner, suite_of
from tests.deploy.studies.suite.stub_process import POLICIES
from tests.harness.waiting import ROOT, gone, wait_until

ONE = """
seeds = 1
minutes = 5
episodes = 3
[tasks.CartPole-v1]
random = 5
reference = 10
[contestants.stub]
"""
TWO = ONE.replace("seeds = 1", "seeds = [4, 7]") + "[contestants.other]\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(jobs, "TURN_SECONDS", 0.01)
    return tmp_path / "mine.toml"


def run(file: Path, text: str = "", kind: type[Runner] = StubRunner) -> Runner:
    if text:
        file.write_text(text)
    made = suite_of(file, file.parent / "results", kind)
    made.run()
    return made


def stub(of: Runner, name: str = "stub") -> Stub:
    found = of._kinds[name]
    assert isinstance(found, Stub)
    return found


def result(file: Path, name: str = "mine-cartpole-v1-stub-1") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((file.parent / "results" / f"{name}.json").read_text())
    return found


def test_a_result_has_everything_that_is_needed_to_believe_it_and_all_play_the_same_episodes(file: Path) -> None:
    run(file, ONE + "[contestants.other]\n", Runner)
    found, other = result(file), result(file, "mine-cartpole-v1-other-1")
    assert [point["seconds"] for point in found["curve"]] == [1, 2, 3]
    assert [point["steps"] for point in found["curve"]] == [100, 200, 300]
    returns = found["curve"][0]["episodes"]["return"]
    assert len(returns) == 3 and found["curve"][0]["return_mean"] == pytest.approx(sum(returns) / 3)
    assert 8 <= min(returns) <= max(returns) <= 11, "a pole that is always pushed to one side"
    assert all(point["episodes"] == found["curve"][0]["episodes"] for point in found["curve"] + other["curve"])
    assert found["configuration"] == {"stub": True} and found["versions"] == {"stub": "1"}
    assert found["training"]["steps"] == 300 and found["training"]["ended"] == "by itself"
    before, after = found["machine"].pop("core_speed")
    assert set(found["machine"]) == {"cpu", "cores", "memory_gb", "system"} and min(before, after) > 1
    assert found["commit"] is None or len(found["commit"].removesuffix("+")) == 40
    assert not list((file.parent / "results" / "unfinished").iterdir())


def test_progress_is_told_finished_runs_are_skipped_and_what_is_left_of_them_is_deleted(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(file, TWO)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 8
    assert lines[0] == "[1/4] CartPole-v1 · stub · seed 4: begins, 5 min at most; at most 20 min of training left"
    assert lines[1].startswith("[1/4] CartPole-v1 · stub · seed 4: ended after ") and lines[1].endswith("15 min of training left")
    assert lines[4].startswith("[3/4] CartPole-v1 · other · seed 7: begins") and lines[7].endswith("nothing is left")
    left = file.parent / "results" / "unfinished" / "mine-cartpole-v1-stub-4"
    left.mkdir()
    (left / "log").touch()
    again = run(file)
    assert stub(again).begun == stub(again, "other").begun == []
    assert "4 of 4 runs are finished, and are skipped" in capsys.readouterr().err
    assert stub(again).removed == ["mine-cartpole-v1-stub-4"] and not left.exists()


def test_a_run_that_fails_is_named_and_repeated_and_does_not_stop_the_others(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = run(file, ONE.replace("[contestants.stub]", "[contestants.stub]\nsettings.exit = 3") + "[contestants.other]\n")
    assert failing.failed == ["mine-cartpole-v1-stub-1"]
    assert "failed: its process ended with 3 (it said nothing): see " in capsys.readouterr().err
    assert result(file, "mine-cartpole-v1-other-1")["curve"]
    mended = run(file, ONE + "[contestants.other]\n")
    assert stub(mended).begun == ["mine-cartpole-v1-stub-1"] and not mended.failed


def test_a_result_of_other_settings_is_refused_with_the_key_and_so_is_a_file_that_is_none(file: Path) -> None:
    run(file, ONE)
    file.write_text(ONE.replace("[contestants.stub]", "[contestants.stub]\nsettings.learner.batch_size = 64"))
    with pytest.raises(ConfigError, match="settings.learner was None, is .*batch_size.*remove it to repeat the run"):
        suite_of(file, file.parent / "results").finished()
    (file.parent / "results" / "mine-cartpole-v1-stub-1.json").write_text('{"curve": [')
    with pytest.raises(ConfigError, match="not a result"):
        suite_of(file, file.parent / "results").finished()


def test_another_reference_needs_no_other_runs(file: Path) -> None:
    run(file, ONE)
    file.write_text(ONE.replace("reference = 10", "reference = 9"))
    changed = suite_of(file, file.parent / "results")
    found = {each.name: one for each, one in changed.finished()}
    (task,) = summarise(changed._suite, found)["tasks"]
    assert task["contestants"][0]["seconds_to_score"] == [1.0], "three policies of the same score"


def test_two_processes_do_not_run_one_suite(file: Path) -> None:
    file.write_text(ONE)
    first, refused = suite_of(file, file.parent / "results"), []
    begin = stub(first).begin

    def begin_beside_another(*arguments: Any) -> Any:
        with pytest.raises(ConfigError, match=rf"another process \(pid {os.getpid()}\) is running this suite"):
            suite_of(file, file.parent / "results").run()
        refused.append(True)
        return begin(*arguments)

    stub(first).begin = begin_beside_another  # type: ignore[assignment, method-assign]
    first.run()
    assert refused and result(file)


def test_a_run_of_the_same_name_that_the_suite_has_not_started_is_left_alone(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be up: a second suite of the same file name has it, whose results are elsewhere."""
    monkeypatch.chdir(file.parent)
    monkeypatch.setattr(headrace, "start_in_background", lambda *given: pytest.fail("a run was started in its place"))
    file.write_text(ONE.replace("contestants.stub", "contestants.headrace"))
    name = "mine-cartpole-v1-headrace-1"
    (file.parent / "runs" / name).mkdir(parents=True)
    for _ in range(2):
        made = Runner(read(file), file.parent / "results", runner.to_stderr)
        made.run()
        assert made.failed == [name] and (file.parent / "runs" / name).exists()
        assert f"there is a run {name} already, which this suite has not started" in capsys.readouterr().err


def test_a_training_that_does_not_end_is_stopped_at_the_limit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five minutes have passed as soon as its time counts and it has saved its policies."""
    file.write_text(ONE.replace("[contestants.stub]", '[contestants.stub]\nsettings.hold = "never"'))
    snapshots = file.parent / "results" / "unfinished" / "mine-cartpole-v1-stub-1" / "snapshots.jsonl"

    def later() -> float:
        counts = snapshots.with_name("begun.json").exists()  # written when the time has begun
        return time.monotonic() + (300 if counts and len(list(read_lines(snapshots))) == POLICIES else 0)

    monkeypatch.setattr(runner, "time", SimpleNamespace(**vars(time) | {"monotonic": later}))
    made = suite_of(file, file.parent / "results")
    before = set(psutil.Process().children())  # other tests may have left dead ones that were adopted, and adopt more
    try:
        made.run()
    finally:
        left = [child for child in psutil.Process().children() if child not in before and not gone(child.pid)]
        assert not left, "nothing is left"
    assert not made.failed
    assert result(file)["training"]["ended"] == "at the time limit"
    assert result(file)["training"]["seconds"] >= 300


@contextmanager
def suite_process(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The suite in a process; kill -9 ends it, whatever the test does."""
    command = [sys.executable, "-m", "tests.deploy.studies.suite.stub", str(file), str(file.parent / "results")]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_after_kill_9_the_training_that_is_left_is_ended_and_starts_again(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hold, folder = f"{file.parent}/go-{{seed}}", file.parent / "results" / "unfinished" / "mine-cartpole-v1-stub-7"
    file.write_text(TWO.replace("[contestants.stub]", f"[contestants.stub]\ntasks.CartPole-v1.hold = {hold!r}"))
    (file.parent / "go-4").touch()
    with suite_process(file):
        wait_until(lambda: len(list(read_lines(folder / "snapshots.jsonl"))) == POLICIES)
        wait_until((folder / "begun.json").exists)
    orphan = psutil.Process(json.loads((folder / "begun.json").read_text())["pid"])
    assert orphan.is_running()
    (file.parent / "go-7").touch()
    again = run(file)
    assert gone(orphan.pid)
    assert stub(again).begun == ["mine-cartpole-v1-stub-7"] and not again.failed
    assert stub(again).removed == 2 * ["mine-cartpole-v1-stub-7"], "what was left of it, and what it made"
    said = capsys.readouterr().err
    assert "3 of 4 runs are finished" in said
    assert "seed 7: its training did not end, so it starts again: time counts from the start of its process" in said
    assert len(result(file, "mine-cartpole-v1-stub-7")["curve"]) == POLICIES, "nothing of the first attempt is left"


def interrupted(file: Path, job: type[RunJob], monkeypatch: pytest.MonkeyPatch) -> Runner:
    """A suite that ends abruptly when its first evaluation is over."""

    class Interrupted(job):  # type: ignore[misc, valid-type]
        def _evaluate(self) -> Iterator[None]:
            yield from super()._evaluate()
            raise KeyboardInterrupt

    first = suite_of(file, file.parent / "results", Runner)
    monkeypatch.setattr(first, "job", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    return first


def test_a_training_that_is_over_is_only_evaluated(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(ONE)
    interrupted(file, RunJob, monkeypatch)
    evaluations = file.parent / "results" / "unfinished" / "mine-cartpole-v1-stub-1" / "evaluations.jsonl"
    lines = evaluations.read_text().splitlines(keepends=True)
    marked = json.loads(lines[0]) | {"steps": 99}
    evaluations.write_text(json.dumps(marked) + "\n" + lines[1][:20])  # killed in the middle of a line
    again = run(file, kind=Runner)
    assert stub(again).begun == []
    assert "its training is over, its evaluation goes on" in capsys.readouterr().err
    assert [point["steps"] for point in result(file)["curve"]] == [99, 200, 300], "the first was not evaluated again"


def test_a_training_whose_settings_name_a_file_of_the_user_is_not_repeated(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    settings = f"[contestants.stub]\nsettings.weights = {str(file.parent / 'first.safetensors')!r}"
    file.write_text(ONE.replace("[contestants.stub]", settings))
    assert stub(interrupted(file, StubJob, monkeypatch)).begun and stub(run(file)).begun == []


def test_what_was_begun_with_other_settings_starts_again(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = file.parent / "results" / "unfinished" / "mine-cartpole-v1-stub-1"
    folder.mkdir(parents=True)
    file.write_text(ONE)
    asked = suite_of(file, file.parent / "results").runs[0].asked() | {"episodes": 7}
    (folder / "begun.json").write_text(json.dumps({"pid": 2**22 + 1, "created": 0.0, "asked": asked}))
    (folder / "trained.json").write_text("{}")
    assert stub(run(file)).begun == ["mine-cartpole-v1-stub-1"]
    assert "was begun with other settings (episodes was 7, is 3), so it starts again" in capsys.readouterr().err


def test_a_clock_that_is_set_while_a_training_goes_on_changes_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set back by an hour, it left a training without any snapshot for that hour."""
    snapshots = SnapshotFile(SuiteFolder(tmp_path), time.monotonic())
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    assert 0 <= snapshots.seconds < 600
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    snapshots.add(b"policy", ".weights", 1000, snapshots.seconds)
    (line,) = read_lines(tmp_path / "snapshots.jsonl")
    assert 0 <= line["seconds"] < 600 and (tmp_path / line["file"]).read_bytes() == b"policy"


def test_ctrl_c_ends_the_training_in_order(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(ONE.replace("[contestants.stub]", '[contestants.stub]\nsettings.hold = "never"'))
    made, signals, trainings = suite_of(file, file.parent / "results"), list[int](), []
    kind, begin = stub(made), stub(made).begin

    def begin_and_interrupt(*arguments: Any) -> Any:
        trainings.append(begin(*arguments))
        signals.append(2)
        return trainings[0]

    kind.begin = begin_and_interrupt  # type: ignore[assignment, method-assign]
    assert made.run(signals) and not made.failed
    assert trainings[0].process.poll() == (-15 if os.name == "posix" else 1), "asked, not killed"
    assert "the same command resumes it" in capsys.readouterr().err and not list((file.parent / "results").glob("*.json"))


def test_json_is_strict_and_names_no_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    text = provenance.strict_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": str(tmp_path / "x"), "d": "/usr/bin/python"})
    assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": [None, 1.5], "c": "x", "d": "/usr/bin/python"}


def test_a_folder_without_git_has_no_commit(tmp_path: Path) -> None:
    assert provenance.commit(tmp_path) is None
