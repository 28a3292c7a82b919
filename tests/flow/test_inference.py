"""Actors whose network is in the inference process of their machine, which is killed, and hangs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.config import ActorsConfig, EnvConfig
from replay.config import ReplayConfig
from tests.harness.checker import Checker
from tests.harness.fleet import Fleet
from tests.harness.run import World
from tests.harness.waiting import gone, wait_until

ACTORS = 2
ROUND = 300  # steps


@pytest.fixture(params=["vector", pytest.param("image", marks=pytest.mark.slow)])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    env = EnvConfig(id=f"tests.flow.counting_env:{request.param}", stack=2, chunk_length=8)
    actors = ActorsConfig(count=ACTORS, envs_per_actor=3, inference="batched")
    replay = ReplayConfig(min_size=1, samples_per_insert_low=0.0, samples_per_insert_high=1e9)
    made = Fleet(tmp_path / "run", env, actors, replay, 3, "rollouts")
    yield made
    made.close()


@pytest.mark.flow
def test_each_row_has_the_version_that_chose_its_action_and_no_step_is_lost_with_the_inference_process(fleet: Fleet) -> None:
    fleet.start_replay()
    fleet.start_inference()
    sampler, checker = fleet.sampler(batch_size=1), Checker(fleet.spec)  # it knows which action each version takes
    for index in range(ACTORS):
        fleet.start_actor(index)

    newest = -1

    def take(seconds: float) -> bool:
        nonlocal newest
        if (batch := sampler.next(seconds)) is None:
            return False
        checker.check_rollouts(batch)
        newest = max(newest, int(batch.arrays["policy_version"].max()))
        sampler.release(batch)
        return True

    def go_on() -> None:
        enough = len(checker.seen) + ROUND
        while len(checker.seen) < enough or newest < fleet.version:  # else the next version may replace it unused
            wait_until(lambda: take(0.5), what="the next rollout")

    go_on()
    for killed in (False, True, False, True):
        fleet.publish()
        go_on()
        if killed:
            fleet.kill("inference")
            while take(2.0):  # what was sent before; now every actor waits
                pass
            fleet.publish()
            fleet.start_inference()
            go_on()
    checker.check_none_shortened()
    actors = [fleet.ask_to_stop(f"actor-{index}") for index in range(ACTORS)]
    while take(0.5) or any(actor.poll() is None for actor in actors):
        pass
    assert [actor.returncode for actor in actors] == [0] * ACTORS, [fleet.log(f"actor-{index}") for index in range(ACTORS)]
    checker.check_nothing_lost_or_doubled()
    checker.check_versions_rise()
    versions = {version for each in checker.versions.values() for version in each.values()}
    assert versions >= set(range(1, fleet.version + 1)), "each was in use"
    assert len(checker.seen) == sum(fleet.steps_taken(f"actor-{index}") for index in range(ACTORS))
    assert fleet.stop("inference") == 0, fleet.log("inference")


@pytest.mark.flow
@pytest.mark.slow
def test_actors_wait_while_their_inference_process_is_replaced_that_was_killed_or_hangs(tmp_path: Path) -> None:
    run = World(tmp_path, "CartPole-v1", ("--actors.inference", "batched", "--evaluator.enabled", "false"))
    try:
        run.up()
        before = {name: run.pid(name) for name in ("actor-0", "actor-1")}
        for number, how in enumerate((signal.SIGKILL, signal.SIGSTOP), 1):
            steps, pid = run.status["steps"], run.pid("inference")
            run.until(lambda least=steps: run.status["steps"] > least, "steps")
            os.kill(pid, how)
            run.until(lambda one=pid: gone(one), "its end")
            run.until(lambda times=number: run.process("inference").get("restarts") == times, "another one")
            run.until(lambda: run.process("inference").get("state") == "ready", "it is ready")
            steps = run.status["steps"]
            run.until(lambda least=steps: run.status["steps"] > least + 100, "steps go on")
        assert {name: run.pid(name) for name in before} == before, "the actors have waited"
        assert all(run.process(name)["restarts"] == 0 for name in before)
        assert run.stop() == 0
    finally:
        run.close()
