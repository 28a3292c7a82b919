"""A learner of two processes in a run as a user starts it: both are killed in turn, stop in order, and one goes on alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.harness.run import World
from tests.harness.waiting import gone, wait_until

pytestmark = [
    pytest.mark.flow,
    pytest.mark.slow,  # tests/learner/parallel has the short version
    pytest.mark.skipif(os.name != "posix", reason="signals"),
]

SETTINGS = """
--algorithm.hidden 16 --actors.envs-per-actor 2 --actors.chunk-seconds 0.5 --replay.capacity 20_000 --replay.min-size 100
--learner.batch-size 16 --learner.updates-per-epoch 10 --learner.checkpoint-epochs 2 --device cpu --seed 3
--evaluator.enabled false --actors 1
""".split()


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"), "tests.deploy.paced_env:sleepy", [*SETTINGS, "--learner.processes", "2"])
    yield made
    made.close()
    made.run_dir.remove_sockets()


def ranks(world: World) -> list[psutil.Process]:
    """The learner's processes by rank, when all are there."""
    pid = world.process("learner").get("pid")
    return sorted(psutil.Process(pid).children(), key=lambda each: each.pid) if pid else []


def ready_again(world: World, before: int) -> None:
    """Waits for a life of the learner other than that of the pid `before`."""

    def there() -> bool:
        learner = world.process("learner")
        return learner.get("pid") not in (None, before) and learner["state"] == "ready"

    world.until(there, "another life of the learner")


def test_a_learner_of_two_processes_survives_its_parts_and_stops_as_one(world: World) -> None:
    world.up()
    world.until(lambda: (world.status["learner"]["updates"] or 0) > 0 and world.run_dir.latest.exists(), "updates and weights")
    agent, members = world.process("learner")["pid"], ranks(world)
    assert len(members) == 2
    memory = [member.memory_info().rss for member in members]
    assert world.process("learner")["rss_bytes"] > 0.9 * sum(memory), "the status counts all of them"
    assert not [entry for entry in members[0].net_connections("inet") if entry.laddr.ip != "127.0.0.1"]

    members[1].send_signal(signal.SIGKILL)
    ready_again(world, agent)
    killed = "learner-1 was killed by SIGKILL, so the other learner processes were ended too"
    assert killed in world.process("learner")["last_exit"]

    agent, members = world.process("learner")["pid"], ranks(world)
    assert len(members) == 2
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: all(gone(member.pid) for member in members), what="the end of both processes without their parent")
    ready_again(world, agent)

    pids = [world.process("learner")["pid"], *(member.pid for member in ranks(world))]
    assert world.stop() == 0
    assert all(map(gone, pids))
    assert list((world.run_dir.path / "endpoints").iterdir()) == []
    told = world.text
    assert told.count("continues from epoch-") == 2, "rank 0 alone says it, each time"
    assert all(noise not in told for noise in ("Traceback", "Error", "Warning", "torchrun", "elastic", "did not stop in time"))
    done = [world.records(name)[-1]["updates"] for name in ("learner", "learner-1")]
    assert done[0] == done[1] > 0, "both stop after the same update"

    world.settings = [*SETTINGS, "--learner.processes", "1"]
    world.up()
    world.until(lambda: (world.status["learner"]["updates"] or 0) > done[0], "one process that goes on where two were")
    assert not ranks(world)
    assert world.stop() == 0
