"""Programs that connect, by the collector of an actor: every row that leaves it is one that a program has sent."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from actors.collector import Collector
from actors.config import ActorProcess, ActorsConfig, ActorSettings, EnvConfig
from actors.envs.foreign.plain_data import to_plain
from actors.envs.remote.family import RemoteOptions
from actors.sessions import SessionCollector
from learner.algorithms.base import ActionBatch
from learner.algorithms.dqn.config import DqnConfig
from replay.client.base import SampledBatch
from replay.config import ReplayConfig
from replay.table.ring import Ring
from tests.actors.envs.remote.programs import Asking, Raw, Serving, hello
from tests.flow.counting_env import ACTIONS, CountingEnv
from tests.harness.checker import Checker
from tests.harness.waiting import wait_until
from tests.replay.examples import every_item
from transport.experience import Categorical, Chunk, Columns, ExperienceSpec, observed
from transport.metrics import Metrics
from transport.names import Named

VERSION = 3
SPEC = ExperienceSpec((observed("observation", (8,), "<f4"),), Categorical(ACTIONS), chunk_length=16, n_step=3)


class VersionPolicy:
    """Takes the action VERSION mod ACTIONS, as the checker expects."""

    state: dict[str, tuple[int, ...]] = {}

    def assign(self, seed: int, offset: int, count: int, total: int) -> None: ...

    def act(self, observation: Columns, state: Columns, mode: str) -> ActionBatch:
        return ActionBatch(np.full(len(observation["observation"]), VERSION % ACTIONS), {}, {})

    def annotate(self, columns: Columns) -> Columns:
        return columns


class Actor(threading.Thread):
    """The loop of an actor around its collector, in a thread; use it with `with`."""

    def __init__(self, environments: int = 16, spec: ExperienceSpec = SPEC, policy: Any = None, **options: Any) -> None:
        super().__init__(daemon=True)
        env = EnvConfig("remote", options=RemoteOptions(**options))
        process = ActorProcess(1, {}, {}, ActorsConfig(count=1, envs_per_actor=environments, chunk_seconds=0.2))
        settings = ActorSettings(0, process, env, Named("dqn", DqnConfig()), spec)
        algorithm: Any = SimpleNamespace(acting=lambda spec, inference: policy or VersionPolicy(), begins_random=False)
        inference: Any = None
        self.spec, self.metrics, self.chunks = spec, Metrics(), list[Chunk]()
        self._over = threading.Event()
        make = partial(Collector, settings, algorithm, inference, metrics=self.metrics, clock=time.monotonic)
        self.collector = SessionCollector(settings, settings.assignment, self.metrics, make)

    def __enter__(self) -> Actor:
        self.collector.reset()
        self.port = self.collector.listener.port  # type: ignore[attr-defined]
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self.join(60)
        assert not self.is_alive()

    def run(self) -> None:
        follower: Any = SimpleNamespace(version=VERSION, rejected=0, lag=0)
        while not self._over.is_set():
            self.chunks.extend(self.collector.step(follower))
        self.chunks.extend(self.collector.drain(VERSION))
        self.collector.close()

    def left(self) -> bool:
        """Whether no program is connected, and what they have played has been cut."""
        return not self.collector.programs

    def items(self) -> dict[str, np.ndarray]:
        """Every item that has left the actor."""
        table = Ring(self.spec, ReplayConfig(min_size=1, capacity=100_000), seed=0)
        assert all([table.insert(chunk) for chunk in self.chunks])
        return every_item(table)

    def check(self) -> Checker:
        checker = Checker(self.spec)
        checker.check(SampledBatch(0, 0, self.items()))
        return checker


def vectors(count: int = 1) -> list[gymnasium.Env]:
    return [CountingEnv(image=False) for _ in range(count)]


def test_every_step_of_programs_of_all_kinds_arrives_once() -> None:
    with Actor() as actor:
        programs = [
            Asking(actor.port, vectors(4), first_seed=10, steps=150),
            Asking(actor.port, vectors(), first_seed=20, steps=200),
            Asking(actor.port, vectors(), first_seed=30, steps=100, single=True),
            Serving(actor.port, vectors()[0], seed=40, steps=120),
        ]
        for program in programs:
            program.join(60)
            assert not program.is_alive()
        wait_until(actor.left)
    checker = actor.check()
    checker.check_nothing_lost_or_doubled()
    played: dict[int, int] = {}
    for identity, _, _ in checker.seen:
        played[identity] = played.get(identity, 0) + 1
    assert {identity: played[identity] for identity in (10, 11, 12, 13, 20, 30)} == {
        **dict.fromkeys((10, 11, 12, 13), 150),
        20: 200,
        30: 100,
    }
    assert len([identity for identity in played if identity not in range(10, 40)]) == 1 and 120 in played.values()
    assert actor.metrics.value("steps") == sum(played.values())


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"observation": [float("inf")] * 8, "reward": 1.0}, "not finite"),
        ({"observation": [2e9] * 8, "reward": 1.0}, "beyond 1e+09"),
        ({"observation": [1.0] * 8, "reward": -2e9}, "reward must be a finite number"),
        ({"observation": [1e300] * 8, "reward": 1.0}, "not finite"),
        ({"observation": [1.0] * 7, "reward": 1.0}, "has the shape (1, 7)"),
        ({"observation": [1.0] * 8, "reward": "much"}, "reward must be a finite number"),
        ({"observation": [1.0] * 8}, "no reward"),
        ({"observation": [1.0] * 8, "reward": 1.0, "truncated": True}, "needs final_observation"),
        ({"observation": [1.0] * 8, "reward": 1.0, "terminated": "no"}, "terminated must be true or false"),
        ({"reward": 1.0}, "no observation"),
        ([], "a message is no map"),
        ("step", "a message is no map"),
    ],
)
def test_a_program_that_lies_is_told_so_and_its_steps_until_then_are_kept(lie: Any, why: str) -> None:
    env = vectors()[0]
    with Actor() as actor:
        raw = Raw(actor.port, binary=True)
        assert raw.exchange(hello(env)) == {"welcome": {"environments": 1}}
        answer = raw.exchange({"observation": to_plain(env.reset(seed=7)[0])})
        for _ in range(3):  # the first episode is longer
            seen, reward, *_ = env.step(answer["action"])
            answer = raw.exchange({"observation": to_plain(seen), "reward": reward})
        answer = raw.exchange(lie)
        assert why in answer["close"] and answer["again"] is False
        raw.close()
        wait_until(actor.left)
    assert [name[2] for name in actor.check().seen] == [0, 1, 2]
    assert actor.metrics.value("broken_episodes") == 1


def test_a_silent_program_is_let_go_while_another_goes_on() -> None:
    with Actor(silence_seconds=0.5) as actor:
        silent = Raw(actor.port)
        silent.exchange(hello(vectors()[0]))
        silent.exchange({"observation": to_plain(vectors()[0].reset(seed=5)[0])})
        other = Asking(actor.port, vectors(), first_seed=6, steps=200)
        answer = silent.receive()
        assert "silent for 0.5 s" in answer["close"] and answer["again"] is True
        other.join(60)
        wait_until(actor.left)
        again = Asking(actor.port, vectors(16), first_seed=50, steps=5)  # every environment is free again
        again.join(60)
        wait_until(actor.left)
    checker = actor.check()
    assert sum(name[0] == 6 for name in checker.seen) == 200 and sum(name[0] >= 50 for name in checker.seen) == 80


def test_a_program_whose_environments_do_not_fit_is_told_what_would_help() -> None:
    with Actor(environments=2) as actor:
        raw = Raw(actor.port)
        answer = raw.exchange(hello(vectors()[0], environments=3))
        assert "2 of the 2 environments are free" in answer["close"] and "--actors.envs-per-actor" in answer["close"]
        assert answer["again"] is False
        kept = Raw(actor.port)
        assert "welcome" in kept.exchange(hello(vectors()[0]))
        answer = Raw(actor.port).exchange(hello(vectors()[0], environments=2))
        assert "1 of the 2 environments are free" in answer["close"] and answer["again"] is True


def test_a_program_of_other_spaces_than_the_run_is_refused() -> None:
    env = vectors()[0]
    other = hello(env)
    other["observation"] = {"kind": "box", "shape": [3]}
    with Actor() as actor:
        assert "observation" in Raw(actor.port).exchange(other)["close"]
        other = hello(env)
        other["action"] = {"kind": "discrete", "n": 2}
        assert "actions" in Raw(actor.port).exchange(other)["close"]


def test_an_actor_that_ends_keeps_what_was_played_and_lets_programs_come_again() -> None:
    with Actor() as actor:
        env, raw = vectors()[0], Raw(actor.port)
        raw.exchange(hello(env))
        answer = raw.exchange({"observation": to_plain(env.reset(seed=7)[0])})
        seen, reward, *_ = env.step(answer["action"])
        raw.exchange({"observation": to_plain(seen), "reward": reward})
    assert raw.receive() == {"close": "the actor ends", "again": True}
    assert list(actor.check().seen) == [(7, 0, 0)]


def test_steps_of_a_program_that_waits_leave_in_time() -> None:
    env = vectors()[0]
    with Actor() as actor:
        raw = Raw(actor.port)
        raw.exchange(hello(env))
        answer = raw.exchange({"observation": to_plain(env.reset(seed=7)[0])})
        for _ in range(5):
            seen, reward, *_ = env.step(answer["action"])
            answer = raw.exchange({"observation": to_plain(seen), "reward": reward})
        wait_until(lambda: actor.chunks)  # chunk_seconds are over, and it has not moved
        assert not actor.left()
