"""A fork of a run that is up, and of one that ended, learns on from there while the first one goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from deploy import runs
from deploy.recorded.fork_point import read_fork_point
from deploy.recorded.run import RecordedRun
from tests.harness.run import World
from transport.run_dir import RunDir

pytestmark = [pytest.mark.flow, pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="signals")]

COMMON = "--actors.envs-per-actor 2 --learner.checkpoint-epochs 2 --device cpu --evaluator.enabled false".split()
DQN = "--algo dqn --replay.capacity 4_000 --replay.min-size 200 --learner.batch-size 32 --learner.updates-per-epoch 10".split()


@pytest.mark.parametrize("settings", [DQN, [*DQN, "--replay.shards", "2"], ["--algo", "ppo"]], ids=["dqn", "shards", "ppo"])
def test_a_fork_learns_on_and_the_first_run_is_not_disturbed(settings: list[str], tmp_path: Path) -> None:
    world = World(tmp_path, "CartPole-v1", [*COMMON, *settings])
    try:
        world.up()
        world.until(lambda: (world.status["learner"]["epoch"] or 0) > 6, "checkpoints")
        assert forked_and_learning(world, "early") > 0
        pids = world.pids()
        world.until(lambda: world.status["steps"] > 6_000, "evicted experience")
        assert world.pids() == pids and not any(one["restarts"] for one in world.status["processes"])
        assert world.stop() == 0
        begun = forked_and_learning(world, "late")
        if settings[1] == "dqn":
            assert begun == runs.read_steps(world.run_dir), "all experience, to the step"
    finally:
        world.close()
    for name in ("mine", "early", "late"):
        checked = world.command("fsck", name, "--json")
        assert checked.returncode == 0 and not json.loads(checked.stdout)["found"], checked.stdout


def forked_and_learning(world: World, name: str) -> int:
    """Forks the run under this name and has the fork go on for a while. The steps with which it began."""
    made = world.command("fork", "mine", name, "--set", "learner.learning-rate=1e-5", "--set", "actors=1")
    assert made.returncode == 0, made.stderr
    fork = RunDir(world.folder / "runs" / name)
    point = read_fork_point(fork)
    assert point is not None
    went_on = world.command_apart("up", "--run", name, "--stop-after", "3s", "--deploy.record-seconds", "0.5")
    assert went_on.returncode == 0 and f"continues from {point.checkpoint}" in went_on.stdout, went_on.stdout + went_on.stderr
    assert runs.read_steps(fork) > point.steps
    recorded = RecordedRun(fork)
    recorded.read()
    assert recorded.newest["learner"]["learning_rate"] == pytest.approx(1e-5)
    assert (recorded.newest["learner"]["epoch"] or 0) > point.epoch and recorded.total.steps >= point.steps
    return point.steps
