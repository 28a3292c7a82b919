"""What replay draws new items by is what a checker computes from the Q-values that the actors' policy is known to have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from actors.config import ActorsConfig, EnvConfig
from replay.config import ReplayConfig
from replay.log.journal import STATE_FILE
from replay.log.state import read_state
from tests.flow.counting_env import ACTIONS, ends_by_termination, episode_length, reward_of
from tests.harness.checker import Checker, check_log
from tests.harness.fleet import Fleet, q_value
from tests.harness.waiting import wait_until

Name = tuple[int, int, int]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    env = EnvConfig(id="tests.flow.counting_env:vector", stack=2, chunk_length=16)
    settings = {"min_size": 1, "samples_per_insert_low": 0.0, "samples_per_insert_high": 1e9, "capacity": 400_000}
    replay = ReplayConfig(priority_exponent=1.0, **settings)  # type: ignore[arg-type]
    made = Fleet(tmp_path / "run", env, ActorsConfig(count=2, envs_per_actor=3, chunk_seconds=0.2), replay, 3)
    yield made
    made.close()


def oracle(fleet: Fleet, name: Name, versions: dict[tuple[int, int], int], actions: dict[Name, int]) -> float:
    """|n-step TD error| of a step, NaN where it bootstraps from an observation that nobody acted on."""
    identity, episode, step = name
    length, gamma, total = episode_length(identity, episode), fleet.algorithm.gamma, 0.0
    taken = q_value(versions[episode, step], step, actions[name])
    for k in range(fleet.spec.n_step):
        if step + k == length or (episode, step + k) not in versions:
            return math.nan  # truncated, or the end of the stream
        total += gamma**k * reward_of(identity, episode, step + k, actions[identity, episode, step + k])
        if step + k + 1 == length and ends_by_termination(identity, episode):
            return abs(total - taken)
    following = (episode, step + fleet.spec.n_step)
    if following not in versions:
        return math.nan
    best = q_value(versions[following], following[1], versions[following] % ACTIONS)
    return abs(total + gamma**fleet.spec.n_step * best - taken)


@pytest.mark.flow
def test_new_items_have_the_priority_that_acting_says(fleet: Fleet) -> None:
    fleet.start_replay()
    sampler = fleet.sampler(batch_size=8)
    for index in range(2):
        fleet.start_actor(index)
    newest = -1

    def acts_under_the_newest() -> bool:
        nonlocal newest
        batch = sampler.next(0.5)
        if batch is not None:
            newest = max(newest, int(batch.arrays["policy_version"].max()))
            sampler.release(batch)  # its priorities stay as they are
        return newest == fleet.version

    for _ in range(4):
        wait_until(acts_under_the_newest, 60, "items under the newest version")
        fleet.publish()
    for index in range(2):
        assert fleet.stop(f"actor-{index}") == 0, fleet.log(f"actor-{index}")
    assert fleet.stop("replay") == 0, fleet.log("replay")
    state = read_state(fleet.run_dir.segments / STATE_FILE, fleet.spec.chunk_length)
    assert state is not None
    checker = Checker(fleet.spec)
    table = check_log(fleet.run_dir, fleet.spec, checker)
    assert len(checker.keys) == table.size > 500 and max(max(found.values()) for found in checker.versions.values()) >= 3
    values = dict(zip(state.chunk_keys.tolist(), state.selector.values.reshape(len(state.chunk_keys), -1), strict=True))
    actions = dict(checker.keys.values())
    highest, unknown, length = 1.0, 0, fleet.spec.chunk_length
    for chunk, keys in groupby(sorted(checker.keys), lambda key: key // length):
        names = {key % length: checker.keys[key][0] for key in keys}
        expected = {place: oracle(fleet, name, checker.versions[name[0]], actions) for place, name in names.items()}
        known = [value for value in expected.values() if not math.isnan(value)]
        highest = max([highest, *known])
        unknown += len(expected) - len(known)
        for place, value in expected.items():
            assert values[chunk][place] == pytest.approx(highest if math.isnan(value) else value, rel=1e-5), names[place]
    assert 0 < unknown < table.size / 2
