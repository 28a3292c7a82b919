"""`headrace up --env remote`: a program steps the counting environment, and its actor is killed in the middle."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from actors.envs.remote.client import Connection
from tests.flow.counting_env import CountingEnv
from tests.harness.checker import Checker, check_log
from tests.harness.run import World
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.flow, pytest.mark.skipif(os.name != "posix", reason="signals")]
SETTINGS = """
--algo dqn --algorithm.hidden 16 --actors.envs-per-actor 8 --actors.chunk-seconds 0.2 --replay.min-size 200 --env.chunk-length 16
--learner.batch-size 32 --learner.updates-per-epoch 10 --device cpu --seed 3 --deploy.stop-seconds 60
""".split()


class Program(threading.Thread):
    """Steps four environments until it is told to end; a connection that is lost begins new episodes."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address, self.over, self.steps = address, threading.Event(), 0

    def run(self) -> None:
        envs = [CountingEnv(image=False) for _ in range(4)]
        spaces = envs[0].observation_space, envs[0].action_space
        seen = np.stack([env.reset(seed=100 + k)[0] for k, env in enumerate(envs)])
        with Connection(self._address, *spaces, environments=4, name="counting") as made:
            actions = made.act(seen)
            while not self.over.is_set():
                outcomes = [env.step(action) for env, action in zip(envs, actions, strict=True)]
                last, reward, terminated, truncated, _ = (np.array(values) for values in zip(*outcomes, strict=True))
                ended = terminated | truncated
                seen = np.stack([env.reset()[0] if ended[k] else last[k] for k, env in enumerate(envs)])
                actions = made.act(seen, reward, terminated, truncated, last)
                self.steps += 1


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"), "remote", SETTINGS)
    made.actors = 0
    made.environment = made.environment | {"HEADRACE_TOKEN": "the-token-of-this-test"}
    yield made
    made.close()
    made.run_dir.remove_sockets()


def test_a_program_trains_a_run_and_comes_back_to_an_actor_that_was_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TOKEN", "the-token-of-this-test")
    world.start()
    found = wait_until(
        lambda: world.terminal.exists() and re.search(r"connect to (ws://\S+) with", world.text), what="an address"
    )
    assert isinstance(found, re.Match)
    program = Program(found[1])
    program.start()
    world.until(lambda: world.status.get("learner", {}).get("updates"), "it learns", 120)
    before = world.pid("actor-0")
    os.kill(before, signal.SIGKILL)
    world.until(lambda: world.process("actor-0").get("state") == "ready" and world.pid("actor-0") != before, "another actor")
    steps = program.steps
    wait_until(lambda: program.steps > steps + 200, what="the program goes on")
    assert "counting at 127.0.0.1 has connected with 4 environments" in world.text
    program.over.set()
    program.join(60)
    assert world.stop() == 0
    checker = Checker(world.spec, known_policy=False)
    check_log(world.run_dir, world.spec, checker)
    assert set(checker.seen.values()) == {1}  # what was acknowledged is there once; a kill loses what was on its way
    assert {name[0] for name in checker.seen} == {100, 101, 102, 103} and len(checker.seen) > 800
