"""PPO, PQN and SAC as a user starts them: whole runs, struck while they learn, then stopped in order and evaluated."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.run import World

pytestmark = [pytest.mark.flow, pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="signals")]

COMMON = "--algorithm.hidden 16 --learner.checkpoint-epochs 2 --device cpu --seed 3 --actors.envs-per-actor 2"
PPO = (
    "CartPole-v1",
    "--env.wrappers tests.flow.slow_steps:SlowSteps --algo ppo --learner.batch-size 128 --env.chunk-length 16",
)
CASES = [
    # (environment, algorithm's options), what is to be struck
    pytest.param(PPO, ("learner", "replay"), id="ppo"),
    pytest.param(
        (
            "CartPole-v1",
            "--env.wrappers tests.flow.slow_steps:SlowSteps --algo pqn --learner.batch-size 128 --env.chunk-length 16",
        ),
        ("learner",),
        id="pqn",
    ),
    pytest.param(
        (
            "robot",
            "--algo sac --env.backend kinematic --replay.min-size 300 --learner.batch-size 32 --replay.samples-per-insert-low 8",
        ),
        ("learner",),
        id="sac-with-hindsight",
    ),
]


@pytest.fixture
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    env_id, options = request.param
    made = World(tmp_path, env_id, [*COMMON.split(), *options.split()])
    yield made
    made.close()
    made.run_dir.remove_sockets()


def updates(world: World) -> float:
    return float(world.status.get("learner", {}).get("updates") or 0)


@pytest.mark.parametrize(("world", "struck"), CASES, indirect=["world"])
def test_a_run_goes_on_learning_after_kills_and_is_evaluated(world: World, struck: tuple[str, ...]) -> None:
    world.start()
    world.until(lambda: updates(world) > 0, "the first updates")
    for name in struck:
        process = world.process(name)
        os.kill(process["pid"], signal.SIGKILL)
        world.until(lambda name=name, old=process: world.process(name).get("restarts") == old["restarts"] + 1, f"{name} is back")
        world.until(lambda: world.status.get("state") == "running", "every process ready")
        seen = len(world.records("learner"))
        world.until(
            lambda seen=seen: (
                len(records := world.records("learner")) > seen + 1
                and records[-1].get("updates", 0) > records[seen].get("updates", 0)
            ),
            f"updates after {name} was killed",
        )
    world.up()
    assert world.command("down").returncode == 0
    told = world.command_apart("eval", "mine", "--episodes", "4", "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["episodes"] == 4
