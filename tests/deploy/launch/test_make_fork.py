"""`headrace fork`: a folder that a resume goes on with, made whole or not at all, of a run that it leaves alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from deploy import runs
from deploy.cli import main as cli
from deploy.config.layers import load_run_config
from deploy.launch import make_fork
from deploy.launch.resume import steps_done
from deploy.launch.sums import write_sums
from deploy.recorded.fork_point import read_fork_point
from deploy.recorded.run import RecordedRun
from learner.weights.checkpoint import Checkpoints, read
from tests.deploy.cli.test_main import quiet_world, refused
from tests.harness.folder import stopped_run
from transport.run_dir import RunDir

__all__ = ["quiet_world"]
RATE = "learner.learning_rate"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Of 30 s, with checkpoints from about 5, 10 and 15 s."""
    run = stopped_run(tmp_path_factory.mktemp("sound") / "runs" / "q")
    write_sums(run)
    return run


@pytest.fixture
def parent(sound: RunDir, quiet_world: None) -> RunDir:
    shutil.copytree(sound.path, "runs/q")
    return RunDir(Path("runs/q"))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def newest(run: RunDir) -> str:
    found = Checkpoints(run.checkpoints, 3).newest(pytest.fail)
    assert found is not None
    return found[0].name


def test_a_fork_has_what_a_resume_needs_and_the_run_stays_as_it_is(parent: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(parent.path)
    assert cli.main(["fork", "q", "--set", "learner.learning-rate=3e-5", "--set", "actors=5"]) == 0
    said = capsys.readouterr().out
    assert "learner.learning_rate: 3e-05, was" in said and "headrace up --run q-fork-1" in said
    made = RunDir(Path("runs/q-fork-1"))
    assert cli.main(["fsck", "q-fork-1"]) == 0
    config, old = load_run_config(made), load_run_config(parent)
    assert (config.learner.learning_rate, config.actors.count) == (3e-5, 5) and config.env == old.env
    assert newest(made) == newest(parent) and read(made.latest)[1]["policy_version"] == "3"
    segment = next(iter(sorted(parent.segments.glob("*.segment"))))
    assert os.path.samefile(segment, made.segments / segment.name)
    point = read_fork_point(made)
    assert point is not None and (point.run, point.settings) == ("q", {RATE: 3e-5, "actors.count": 5})
    assert steps_done(made) == point.steps
    assert not list((made.path / "metrics").iterdir()) and contents(parent.path) == before


@pytest.mark.parametrize(
    ("typed", "epoch"), [(("--at", "11s"), 2), (("--step", "20_000"), 1), (("--checkpoint", "epoch-0000000002.safetensors"), 2)]
)
def test_the_point_is_the_newest_checkpoint_that_is_old_enough(parent: RunDir, typed: tuple[str, str], epoch: int) -> None:
    assert cli.main(["fork", "q", "b", *typed]) == 0
    made = RunDir(Path("runs/b"))
    point = read_fork_point(made)
    assert point is not None and point.epoch == epoch and newest(made) == f"epoch-{epoch:010d}.safetensors"
    assert point.seconds == pytest.approx(5 * epoch, abs=3)  # a record of the learner every 5 s has an epoch more
    assert made.best.exists() == (epoch >= int(read(parent.best)[1]["policy_version"])), "no policy of a later version"


def test_a_fork_of_a_fork_goes_on_from_its_time_and_steps(parent: RunDir) -> None:
    assert cli.main(["fork", "q", "b", "--at", "11s"]) == cli.main(["fork", "b", "c"]) == 0
    first, second = (read_fork_point(RunDir(Path("runs", name))) for name in "bc")
    assert first is not None and second is not None
    assert (second.run, second.seconds, second.steps, second.epoch) == ("b", first.seconds, first.steps, first.epoch)
    recorded = RecordedRun(RunDir(Path("runs/c")))
    assert recorded.begin == (first.seconds, first.steps) and cli.main(["fsck", "c"]) == 0


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--at", "1s"), "no checkpoint from 1 s or before: there are those of "),
        (("--set", "seed=2"), "--set cannot change seed (1, now 2)"),
        (("--set", "algorithm.gamma=0.5", "--set", "algorithm.name=ppo"), "made with --algo dqn"),
        (("--set", "replay.shards=2"), "--set cannot change replay.shards"),
        (("--set", "learner.lerning-rate=1"), "unknown option --learner.lerning-rate; did you mean --learner.learning-rate?"),
        (("--set", "learner.learning-rate"), "expected SECTION.FIELD=VALUE"),
        (("--set", "learner.learning-rate=fast"), "--learner.learning-rate: 'fast' is not a learning rate"),
        (("--set", "total-steps=100"), "raise that with --set total-steps=N"),
        (("--checkpoint", "latest.safetensors"), "not a full checkpoint"),
        (("--checkpoint", "epoch-9.safetensors"), "there is no file epoch-9.safetensors"),
        (("--at", "1m", "--step", "3"), "not allowed with"),
        (("a b",), "'a b' is not a name for a run"),
        (("q",), "run q exists: give the fork another name"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(
    parent: RunDir, typed: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, error = refused(capsys, "fork", "q", *typed)
    assert status == 2 and said in error
    assert [path.name for path in Path("runs").iterdir() if path.name != ".locks"] == ["q"]
    assert not list(Path("runs/.locks").glob(".*"))


@pytest.mark.parametrize("step", ["share_checkpoint", "share_segments", "write_sums", "replace"])
def test_one_that_is_killed_leaves_nothing_that_is_taken_for_a_run(
    parent: RunDir, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: Any) -> None:
        raise SystemExit(9)

    with monkeypatch.context() as patched:
        patched.setattr(make_fork, step, killed)
        patched.setattr(shutil, "rmtree", lambda *arguments, **more: None)  # SIGKILL cleans nothing up
        with pytest.raises(SystemExit):
            cli.main(["fork", "q"])
    assert [run.name for run in runs.all_runs()] == ["q"]
    assert cli.main(["fork", "q"]) == 0 and cli.main(["fsck", "q-fork-1"]) == 0
    assert not list(Path("runs/.locks").glob(".*")), "the next one removes what was left"


def test_a_damaged_checkpoint_is_named_and_another_may_be_taken(parent: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    newest = parent.checkpoints / "epoch-0000000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:-9])
    status, error = refused(capsys, "fork", "q")
    assert status == 2 and str(newest) in error and "--checkpoint" in error
    assert cli.main(["fork", "q", "--checkpoint", "epoch-0000000002.safetensors"]) == 0
