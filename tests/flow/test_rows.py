"""Above all: every row of every batch is what an actor saw. Real replay and actor processes; the test is the learner."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from actors.config import ActorsConfig, EnvConfig
from replay.config import ReplayConfig
from tests.harness.checker import Checker
from tests.harness.fleet import Fleet
from tests.harness.waiting import PATIENCE_SECONDS, wait_until
from transport.experience import Unit

CAPACITY = 2_000  # of the small ring


class Shape(NamedTuple):
    """What the actors of a fleet collect, and in which chunks."""

    kind: str
    envs: int  # per actor
    stack: int
    n_step: int
    chunk_length: int
    chunk_seconds: float = 10.0


CASES = [
    # shape, codec, network
    pytest.param(Shape("image", 1, 4, 3, 8), "lz4", "mlp", id="image-1-env"),  # actors with an mlp need not import torch
    pytest.param(Shape("image", 8, 4, 3, 16, 0.01), "zstd", "nature", id="image-8-envs-late-chunks", marks=pytest.mark.slow),
    pytest.param(Shape("vector", 1, 1, 1, 1), "none", "mlp", id="vector-1-env-chunks-of-one", marks=pytest.mark.slow),
    pytest.param(Shape("vector", 8, 3, 5, 4), "none", "mlp", id="vector-8-envs-n-beyond-the-chunk"),
]


@pytest.fixture
def fleets() -> Iterator[list[Fleet]]:
    """Ends every process a test has started."""
    started: list[Fleet] = []
    yield started
    for fleet in started:
        fleet.close()


def make_fleet(
    path: Path, fleets: list[Fleet], shape: Shape, unit: Unit = "transitions", network: str = "auto", **replay: object
) -> Fleet:
    """A fleet of the counting environment."""
    env = EnvConfig(id=f"tests.flow.counting_env:{shape.kind}", stack=shape.stack, chunk_length=shape.chunk_length)
    actors = ActorsConfig(count=2, envs_per_actor=shape.envs, chunk_seconds=shape.chunk_seconds)
    settings = {"min_size": 1, "samples_per_insert_low": 0.0, "samples_per_insert_high": 1e9} | replay
    fleet = Fleet(path / "run", env, actors, ReplayConfig(**settings), shape.n_step, unit, network)  # type: ignore[arg-type]
    fleets.append(fleet)
    return fleet


@pytest.mark.flow
@pytest.mark.parametrize(("shape", "codec", "network"), CASES)
def test_each_step_arrives_once_and_as_it_was(
    tmp_path: Path, fleets: list[Fleet], shape: Shape, codec: str, network: str
) -> None:
    """Rollouts: the learner sees every step of every stream exactly once."""
    fleet = make_fleet(tmp_path, fleets, shape, "rollouts", network, codec=codec)
    fleet.start_replay()
    sampler = fleet.sampler(batch_size=1)
    checker = Checker(fleet.spec)
    for index in range(2):
        fleet.start_actor(index)

    def take(seconds: float) -> bool:
        batch = sampler.next(seconds)
        if batch is None:
            return False
        checker.check_rollouts(batch)
        sampler.release(batch)
        return True

    wait_until(lambda: take(0.5), 60, "the first rollout")
    for _ in range(5):
        fleet.publish()
        enough = len(checker.seen) + 600
        while len(checker.seen) < enough:
            wait_until(lambda: take(0.5), what="the next rollout")
    checker.check_none_shortened()
    actors = [fleet.ask_to_stop(f"actor-{index}") for index in range(2)]
    while take(0.5) or any(actor.poll() is None for actor in actors):  # replay holds inserts while nobody samples
        pass
    assert [actor.returncode for actor in actors] == [0, 0]
    checker.check_nothing_lost_or_doubled()
    checker.check_versions_rise()
    assert len({name[0] for name in checker.seen}) == 2 * shape.envs
    assert max(version for versions in checker.versions.values() for version in versions.values()) > 0
    # What the actors count as taken is what arrived: the ends of all streams were drained.
    assert len(checker.seen) == sum(fleet.steps_taken(f"actor-{index}") for index in range(2))


@pytest.mark.flow
@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        pytest.param("image", True, id="image-shared-memory", marks=pytest.mark.slow),
        pytest.param("image", False, id="image-raw-parts", marks=pytest.mark.slow),
        pytest.param("vector", True, id="vector-shared-memory", marks=pytest.mark.slow),
        pytest.param("vector", False, id="vector-raw-parts"),
    ],
)
def test_batches_stay_true_while_the_ring_turns_over(tmp_path: Path, fleets: list[Fleet], kind: str, shared: bool) -> None:
    """Prioritised, a small ring overwritten many times, priorities flowing back for keys that may be gone."""
    fleet = make_fleet(tmp_path, fleets, Shape(kind, 4, 4, 3, 16), capacity=CAPACITY, min_size=200)
    fleet.start_replay()
    sampler = fleet.sampler(batch_size=16, shared=shared)
    checker = Checker(fleet.spec)
    for index in range(2):
        fleet.start_actor(index)
    checked = newest_key = newest_version = 0
    late = time.monotonic() + PATIENCE_SECONDS
    while checked < 250 or newest_key < 3 * CAPACITY or newest_version < 1:
        assert time.monotonic() < late, f"{checked} batches, keys up to {newest_key}, versions up to {newest_version}"
        batch = sampler.next(0.5)
        if batch is None:
            continue
        late = time.monotonic() + PATIENCE_SECONDS
        checker.check(batch)
        newest_key = max(newest_key, int(batch.arrays["key"].max()))
        newest_version = max(newest_version, int(batch.arrays["policy_version"].max()))
        sampler.update_priorities(batch.arrays["key"], batch.arrays["reward"][:, 0])
        sampler.release(batch)
        checked += 1
        if checked % 50 == 0:
            fleet.publish()
    checker.check_none_shortened()
    checker.check_versions_rise()
    for index in range(2):
        assert fleet.stop(f"actor-{index}") == 0, fleet.log(f"actor-{index}")
    assert fleet.stop("replay") == 0, fleet.log("replay")
