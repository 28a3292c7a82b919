"""Two replay shards, real actors, the test as the learner: a shard is killed or stopped, and training goes on with the other."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actors.config import ActorsConfig, EnvConfig
from replay.client.base import SampledBatch
from replay.client.sharded import ShardedSampler
from replay.config import ReplayConfig
from replay.log.journal import Journal
from replay.log.reshard import reshard
from replay.log.shard_folders import log_folders
from replay.shards import KEY_BITS, shard_names, shard_of
from replay.table.ring import Ring
from tests.harness.checker import Checker
from tests.harness.fleet import Fleet
from tests.harness.run import World
from tests.harness.waiting import wait_until
from tests.replay.examples import every_item
from transport.lifetime import new_incarnation
from transport.run_dir import RunDir

SHARDS, ACTORS, BATCH = 2, 2, 16
SETTINGS = """
--algo dqn --algorithm.hidden 16 --envs-per-actor 2 --actors.chunk-seconds 0.5 --replay.capacity 200_000 --replay.min-size 200
--learner.batch-size 32 --learner.updates-per-epoch 10 --device cpu --seed 3 --evaluator.enabled false
""".split()


class Sharded(Fleet):
    """A fleet whose replay is two processes, and a learner of their batches."""

    def __init__(self, path: Path, **replay: object) -> None:
        env = EnvConfig(id="tests.flow.counting_env:vector", stack=1, chunk_length=16)
        actors = ActorsConfig(count=ACTORS, envs_per_actor=2, chunk_seconds=0.05)
        usual = {"min_size": 1, "samples_per_insert_low": 1.0, "samples_per_insert_high": 2.0, "capacity": 400_000}
        super().__init__(path / "run", env, actors, ReplayConfig(shards=SHARDS, **usual | replay), 3)  # type: ignore[arg-type]
        self.checker = Checker(self.spec)
        self.owners: set[int] = set()

    def start_shard(self, index: int) -> None:
        self.start(f"replay-{index}", "replay", str(self.run_dir.path), "--shard", str(index))

    def learn(self) -> None:
        names = shard_names(SHARDS)
        wait_until(lambda: all(self.run_dir.endpoint(name) for name in names), what="all shards bound")
        addresses = [str(self.run_dir.endpoint(name)) for name in names]
        self.learner = ShardedSampler(addresses, "learner", new_incarnation(), self.spec, BATCH, 3, 1)

    def take(self, seconds: float = 0.5) -> bool:
        """Checks a batch, if one comes, and gives it back with new priorities."""
        batch = self.learner.next(seconds)
        if batch is None:
            return False
        self.checker.check(batch)
        self.owners.update((batch.arrays["key"] >> KEY_BITS).tolist())
        self.learner.answer(batch, batch.arrays["reward"][:, 0] + 1)
        return True

    def take_until(self, owners: set[int], batches: int = 10) -> None:
        """So many batches, and more until items of exactly these shards have come in a row of them."""
        self.owners = set()
        for _ in range(batches):
            wait_until(self.take, what="the learner goes on")
        wait_until(lambda: self.take() and self.owners >= owners, what=f"items of {owners}")

    def stop_all(self) -> None:
        actors = [self.ask_to_stop(f"actor-{index}") for index in range(ACTORS)]
        wait_until(lambda: self.take(0.1) is not None and all(actor.poll() is not None for actor in actors), what="drained")
        assert [actor.returncode for actor in actors] == [0] * ACTORS

    def close(self) -> None:
        self.learner.close()
        super().close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Sharded]:
    made = Sharded(tmp_path, state_seconds=0.2)
    for index in range(SHARDS):
        made.start_shard(index)
    made.learn()
    for index in range(ACTORS):
        made.start_actor(index)
    yield made
    made.close()


def stored(run_dir: RunDir, fleet: Fleet) -> tuple[Checker, int]:
    """Every item on the disk, checked, and how many there are."""
    checker, size = Checker(fleet.spec), 0
    for folder in log_folders(run_dir.segments):
        table = Ring(fleet.spec, ReplayConfig(min_size=1, capacity=400_000), seed=0)
        journal = Journal(folder, table, ReplayConfig(), lambda: False)
        if table.size:
            checker.check(SampledBatch(0, 0, every_item(table)))
        journal.close(lambda journal=journal: journal.counters)  # type: ignore[misc]
        size += table.size
    return checker, size


@pytest.mark.flow
def test_a_shard_killed_under_load_loses_and_doubles_nothing_and_training_goes_on(fleet: Sharded) -> None:
    assert {shard_of(f"actor-{index}", SHARDS).index for index in range(ACTORS)} == {0, 1}
    fleet.take_until({0, 1})
    for victim in (0, 1):
        fleet.kill(f"replay-{victim}")
        fleet.take_until({1 - victim}, batches=15)  # some of them were to be filled by the dead shard
        fleet.owners = set()
        for _ in range(5):
            wait_until(fleet.take, what="batches of the other shard")
        assert fleet.owners == {1 - victim}
        fleet.start_shard(victim)
        fleet.take_until({0, 1})
    fleet.stop_all()
    for name in shard_names(SHARDS):
        fleet.kill(name)
    checker, size = stored(fleet.run_dir, fleet)
    checker.check_nothing_lost_or_doubled()
    assert len(checker.seen) == size == sum(fleet.steps_taken(f"actor-{index}") for index in range(ACTORS))
    assert all("restored" in fleet.log(name) and "damaged" not in fleet.log(name) for name in shard_names(SHARDS))
    moved = reshard(fleet.run_dir.segments, fleet.spec, 3, print)
    assert moved.before == SHARDS and np.count_nonzero(moved.chunks) >= 1
    again, size_after = stored(fleet.run_dir, fleet)
    assert size_after == size and again.seen == checker.seen


@pytest.mark.flow
@pytest.mark.slow
def test_a_shard_that_hangs_keeps_its_rows_and_nothing_is_torn(fleet: Sharded) -> None:
    """It may still write to them, so nobody else may: the learner waits, as it does for a replay that hangs."""
    fleet.take_until({0, 1})
    hung = fleet.processes["replay-0"]
    hung.send_signal(signal.SIGSTOP)
    wait_until(lambda: not fleet.take(3.0), what="all slots wait for the shard")
    assert fleet.learner._shards[0].requested and not fleet.learner._shards[0].lost
    hung.send_signal(signal.SIGCONT)
    fleet.take_until({0, 1}, batches=20)
    assert fleet.learner.impossible == 0


@pytest.mark.slow
@pytest.mark.flow
@pytest.mark.alone
def test_a_supervised_run_replaces_a_shard_and_goes_on_with_another_number_after_reshard(tmp_path: Path) -> None:
    world = World(tmp_path, "CartPole-v1", [*SETTINGS, "--replay.shards", "2"])
    try:
        world.up()
        world.until(lambda: (world.status["learner"]["updates"] or 0) > 0, "the learner learns")
        os.kill(world.pid("replay-1"), signal.SIGKILL)
        world.until(lambda: world.process("replay-1")["restarts"] == 1, "another one is started")
        learned = world.status["learner"]["updates"]
        world.until(lambda: world.status["learner"]["updates"] > learned + 20, "it goes on learning")
        world.until(lambda: all(world.status["shards"][name]["items"] for name in shard_names(2)), "both hold items")
        assert world.stop() == 0 and "Traceback" not in world.text, world.text
        steps = world.command("status", "--json").stdout
        other = world.command_apart("up", "--run", "mine", "--replay.shards", "3")
        assert other.returncode == 2 and "`headrace reshard 3 mine`" in other.stderr and other.stderr.count("\n") == 1
        moved = world.command_apart("reshard", "3", "mine")
        assert moved.returncode == 0 and "of 2 replay shards are now in 3" in moved.stdout, moved.stderr
        again = world.command_apart("up", "--run", "mine", "--stop-after", "1s")
        assert again.returncode == 0 and "and all priorities are restored" in again.stdout, again.stdout
        restored = re.findall(r"replay-\d +\| restored ([\d,]+) items", again.stdout)
        assert sum(int(number.replace(",", "")) for number in restored) == json.loads(steps)["replay"]["items"]
    finally:
        world.close()
        world.run_dir.remove_sockets()
