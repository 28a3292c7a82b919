"""Whole runs of `headrace up --device cuda` on the stand-in for a GPU: the learner is killed, the run is stopped and resumed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.run import World
from tests.labs.gpu.stand_in import NAME, VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.flow, pytest.mark.timeout(600)]

SETTINGS = """
--algorithm.hidden 16 --actors.envs-per-actor 2 --actors.chunk-seconds 0.5 --replay.capacity 20_000 --replay.min-size 200
--device cuda --learner.checkpoint-epochs 1 --learner.publish-epochs 1 --evaluator.episodes 2
""".split()
RUNS = {
    "dqn": ("CartPole-v1", "--algo dqn --learner.batch-size 32 --learner.updates-per-epoch 10"),
    "ppo": ("CartPole-v1", "--algo ppo --learner.batch-size 256 --algorithm.adaptive-kl 0.01"),
    "r2d2 in bfloat16": ("CartPole-v1", "--algo r2d2 --learner.batch-size 128 --learner.precision bfloat16"),
    "sac": ("Pendulum-v1", "--algo sac --learner.batch-size 32 --learner.updates-per-epoch 10"),
}


@pytest.fixture
def make(tmp_path: Path, device: Path) -> Iterator[Callable[[str, list[str]], World]]:
    """Makes a run whose processes all have the stand-in."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("from tests.labs.gpu import stand_in\n")
    made: list[World] = []

    def world(env: str, settings: list[str]) -> World:
        made.append(World(tmp_path, env, [*SETTINGS, *settings]))
        known = made[-1].environment["PYTHONPATH"]
        made[-1].environment |= {VARIABLE: str(device), "PYTHONPATH": os.pathsep.join([str(site), known])}
        return made[-1]

    yield world
    for each in made:
        each.close()
        each.run_dir.remove_sockets()


def updates(world: World) -> float:
    return max((record.get("updates", 0.0) for record in world.records("learner")), default=0.0)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_there_outlives_its_learner_is_resumed_and_its_policy_is_one_for_every_machine(
    make: Callable[[str, list[str]], World], name: str
) -> None:
    env, settings = RUNS[name]
    world = make(env, settings.split())
    world.up()
    world.until(lambda: updates(world) > 20 and world.run_dir.latest.exists(), "updates on the device")
    assert NAME in world.text, world.text
    killed = world.pid("learner")
    os.kill(killed, signal.SIGKILL)
    world.until(lambda: world.process("learner").get("pid") not in (None, killed), "another learner")
    world.until(lambda: "continues from" in world.text, "it continues")
    so_far = updates(world)
    world.until(lambda: updates(world) > so_far, "more updates")
    assert world.stop() == 0, world.text
    so_far = updates(world)
    world.supervisor = None
    world.up()
    world.until(lambda: updates(world) > so_far, "updates after the resume")
    assert world.stop() == 0, world.text
    assert "Traceback" not in world.text, world.text
    assert world.command("eval", "mine", "--episodes", "2").returncode == 0
    assert world.command("export", "mine", "policy.safetensors").returncode == 0
