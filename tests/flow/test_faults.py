"""A whole run, scaled and struck while it learns: every step that was acknowledged is on disk, once."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.checker import Checker, check_log
from tests.harness.run import World

SETTINGS = """
--actors.envs-per-actor 2 --actors.chunk-seconds 0.5 --env.chunk-length 16 --algorithm.hidden 16 --replay.capacity 2_000_000
--replay.min-size 200 --replay.samples-per-insert-low 2 --replay.samples-per-insert-high 32 --replay.state-seconds 1
--learner.batch-size 64 --learner.updates-per-epoch 10 --learner.checkpoint-epochs 2 --evaluator.enabled false
--device cpu --seed 0
""".split()
ALL = [f"actor-{index}" for index in range(6)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, "tests.flow.counting_env:slow_vector", SETTINGS)
    yield made
    made.close()
    made.run_dir.remove_sockets()


def ready(world: World, actors: list[str]) -> bool:
    """Whether these, no others, act on learned weights and all else is at work."""
    processes = {process["name"]: process["state"] for process in world.status.get("processes", [])}
    at_work = processes.keys() == {"replay", "learner", *actors} and set(processes.values()) == {"ready"}
    return at_work and all(max(world.versions(name), default=0) > 0 for name in actors)


def strike(world: World, name: str) -> None:
    """kill -9, and then until it is back and all go on: steps are acknowledged and learned from."""
    process = world.process(name)
    os.kill(process["pid"], signal.SIGKILL)
    world.until(lambda: world.process(name).get("restarts") == process["restarts"] + 1, f"{name} is replaced")
    world.until(lambda: world.status.get("state") == "running", "every process ready")
    keys = {"learner": "updates", "replay": "inserted_steps"} | dict.fromkeys(ALL, "acknowledged_steps")
    seen = {other: len(world.records(other)) for other in keys}
    for other, key in keys.items():
        world.until(
            lambda other=other, key=key: (
                len(records := world.records(other)) > seen[other] + 2 and records[-1][key] > records[seen[other]][key]
            ),
            f"{other} goes on after {name} was killed",
        )


@pytest.mark.flow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_run_scaled_and_struck_keeps_every_acknowledged_step(world: World) -> None:
    world.start()
    world.until(lambda: ready(world, ALL[:2]), "two actors learn")
    assert world.command("scale", "6").returncode == 0
    world.until(lambda: ready(world, ALL), "six actors")
    strike(world, "replay")
    before = max(world.versions("actor-0"))
    strike(world, "learner")
    world.until(lambda: world.versions("actor-0")[-1] > before, "newer weights than before the kill")
    assert world.command("scale", "1").returncode == 0
    world.until(lambda: ready(world, ALL[:1]), "one actor")
    assert world.stop() == 0
    log = world.text
    for name in ALL:
        versions = world.versions(name)
        assert versions == sorted(versions), f"{name} fell back to older weights"
    checker = Checker(world.spec, known_policy=False)
    table = check_log(world.run_dir, world.spec, checker)
    checker.check_nothing_lost_or_doubled()
    checker.check_versions_rise()
    taken = {name: int(world.records(name)[-1]["steps"]) for name in ALL}
    assert all(int(world.records(name)[-1]["acknowledged_steps"]) == steps for name, steps in taken.items())
    assert len(checker.seen) == table.size == sum(taken.values())
    assert re.search(r"replay .*restored", log) and "continues from epoch" in log
