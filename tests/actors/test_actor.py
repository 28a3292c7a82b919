"""What of an actor can be seen without processes; the rest is tests/flow."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from actors.actor import Actor, describe
from actors.config import ActorProcess, ActorsConfig, ActorSettings, EnvConfig
from learner.algorithms.dqn.config import DqnConfig
from tests.learner.examples import make_spec, vector
from transport.metrics import Metrics
from transport.names import Named


def make_settings(index: int, count: int, each: int) -> ActorSettings:
    actors = ActorsConfig(count=count, envs_per_actor=each)
    return ActorSettings(index, ActorProcess(1, {}, {}, actors), EnvConfig(), Named("dqn", DqnConfig()), make_spec(vector()))


def test_the_environments_of_all_actors_are_numbered_through() -> None:
    numbers: list[int] = []
    for index in range(3):
        settings = make_settings(index, count=3, each=4)
        assignment = settings.assignment
        numbers += range(assignment.offset, assignment.offset + 4)
        assert assignment.environments == 12
    assert numbers == list(range(12))


def test_the_throughput_line_says_what_was_measured() -> None:
    record = {
        "steps_per_second": 1412.4,
        "steps_per_second_60": 1405.0,
        "episodes": 118.0,
        "episode_return": 231.54,
        "policy_version": 42.0,
        "lag": 1.0,
        "wait_credit_fraction": 0.004,
        "raw_bytes_per_second": 3.2e6,
        "sent_bytes_per_second": 0.25e6,
    }
    parts = describe(record).split(" · ")
    assert parts[:2] == ["1,412 steps/s (10 s) 1,405 (60 s)", "episodes 118"]
    assert {"policy v42 lag 1", "waiting 0.4%", "3.20 MB/s raw, 0.25 sent (12.8x)"} <= set(parts)
    assert any(part.startswith("return 231.5") for part in parts)


def test_before_there_is_a_figure_the_throughput_line_is_whole_all_the_same() -> None:
    line = describe({"raw_bytes_per_second": 0.0, "sent_bytes_per_second": 0.0})
    assert "return –" in line and "policy v-1" in line and line.endswith(" · 0.00 MB/s raw, 0.00 sent (0.0x)")


def test_the_throughput_line_has_no_traffic_where_nothing_is_sent() -> None:
    line = describe({"steps_per_second": 1412.4})  # of a run in one process
    assert line.startswith("1,412 steps/s") and line.endswith("waiting 0.0%") and "MB/s" not in line


@pytest.mark.parametrize(("actors", "cores", "yields"), [(2, 2, False), (3, 2, True), (2, 1, True), (1, 1, False)])
def test_of_more_actors_than_cores_each_yields_to_the_learner(
    actors: int, cores: int, yields: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered = list[bool]()
    monkeypatch.setattr("actors.actor.core_count", lambda: cores)
    monkeypatch.setattr("actors.actor.lower_priority", lambda: lowered.append(True))
    monkeypatch.setattr("actors.actor.usual_priority", lambda: lowered.append(False))
    made = Actor.__new__(Actor)
    made._settings = make_settings(0, actors, each=4)
    made._assignment, made._yields = made._settings.assignment, False
    for _ in range(2):
        made._take_priority()
    assert lowered == [True] * yields
    made._assignment = make_settings(0, 1, each=4).assignment  # after `headrace scale 1`
    made._take_priority()
    assert lowered == [True, False] * yields


class Outside:
    """An actor's lifetime, its connection to replay and its source of weights, all in one."""

    def __init__(self, rests: int, stops: bool = False) -> None:
        """The run is paused for so many rests. `stops`: then it is stopped instead of unpaused."""
        self.rests, self._beats, self._left, self._stops = 0, 0, rests, stops
        self.stopping, self.has_credit, self.sent = False, False, list[object]()
        self.allowance: int | None = None

    @property
    def paused(self) -> bool:
        return self.rests < self._left or self._stops

    def beat(self, resting: bool = False) -> None:
        self.rests, self._beats = self.rests + resting, self._beats + 1
        self.has_credit = self._beats >= 2
        assert self._beats < 100
        self.stopping = self._stops and self.rests >= self._left

    def poll(self, timeout_seconds: float = 0) -> None: ...

    def insert(self, chunk: object) -> None:
        self.sent.append(chunk)


def actor_in(outside: Any, rollouts: bool) -> Actor:
    """An actor of which only `_send` can be called; a chunk waits to be sent."""
    made = Actor.__new__(Actor)
    made._lifetime = made._writer = made._follower = outside
    made._settings, made._collector = make_settings(0, 1, each=4), outside
    made._metrics, made._rollouts, made._outbox = Metrics(), rollouts, deque(["chunk"])  # type: ignore[list-item]
    made._rested_seconds = 0.0
    made._wait_for_weights = lambda: outside.sent.append("weights")  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("rollouts", [False, True])
def test_a_paused_actor_sends_what_it_has_and_waits_at_the_end_of_its_step(rollouts: bool) -> None:
    outside = Outside(rests=5)
    actor = actor_in(outside, rollouts)
    actor._send()
    assert outside.rests == 5 and outside.sent == ["chunk", *(["weights"] if rollouts else [])]
    rested = actor._rested_seconds > 0 or os.name != "posix"  # where the clock goes in steps of 16 ms
    assert not actor._outbox and rested, "chunks do not become late in a pause"


def test_a_paused_actor_that_is_asked_to_stop_does_so() -> None:
    outside = Outside(rests=3, stops=True)
    actor_in(outside, rollouts=False)._send()
    assert outside.rests == 3


class Limited(Outside):
    """The supervisor allows ten steps, and after some beats twenty. Replay has then acknowledged what was sent."""

    def __init__(self) -> None:
        super().__init__(rests=0)
        self.allowance, self.acknowledged_steps, self.parts = 10, 10, ["part"]

    def beat(self, resting: bool = False) -> None:
        assert not resting, "the run is not paused"
        super().beat(resting)
        if self._beats == 5:
            self.allowance = 20

    def flush(self) -> list[str]:
        parts, self.parts = self.parts, []
        return parts


@pytest.mark.parametrize("rollouts", [False, True])
def test_an_actor_that_has_taken_its_steps_sends_what_is_ready_and_waits_for_more(rollouts: bool) -> None:
    outside = Limited()
    actor = actor_in(outside, rollouts)
    actor._metrics.count("steps", 10 + actor._settings.spec.n_step * 4)
    actor._send()
    assert outside._beats == 5 and outside.sent == ["chunk", "weights" if rollouts else "part"]


class Beginning:
    """An actor's lifetime and weights: there are weights from the second look on, and an allowance, if any, from the fourth."""

    stopping, version, looks = False, -1, 0
    allowance: int | None = None

    def __init__(self, allows: bool) -> None:
        self._allows = allows

    def poll(self) -> None:
        self.looks += 1
        self.version = 0 if self.looks >= 2 else -1

    def wait(self, timeout_seconds: float) -> None:
        assert self.looks < 100

    def beat(self) -> None:
        pass

    def listen(self) -> None:
        self.allowance = 7 if self._allows and self.looks >= 4 else None


@pytest.mark.parametrize(("limited", "looks"), [(False, 2), (True, 4)])
def test_an_actor_whose_steps_are_limited_takes_none_before_it_knows_how_many(limited: bool, looks: int) -> None:
    actor, outside = Actor.__new__(Actor), Beginning(allows=limited)
    actor._lifetime = actor._follower = outside  # type: ignore[assignment]
    settings = make_settings(0, 1, each=4)
    actor._settings = replace(settings, process=structs.replace(settings.process, limited=limited))
    actor._wait_to_begin()
    assert outside.looks == looks


class Ending:
    """An actor's lifetime and all that it closes at its end. Replay acknowledges nothing; the time that is left grows to 7 s."""

    outstanding, has_credit, version = 1, True, 0

    def __init__(self) -> None:
        self.now, self.drain_seconds, self.sent = 0.0, 2.0, list[object]()

    def beat(self) -> None:
        if self.now >= 1:
            self.drain_seconds = 7.0

    def drain(self, version: int) -> list[str]:
        return ["rest"]

    def insert(self, chunk: object) -> None:
        self.sent.append(chunk)

    def poll(self, timeout_seconds: float) -> None:
        self.now += 0.5

    def close(self) -> None: ...


def test_an_actor_that_ends_sends_what_it_has_and_is_told_meanwhile_how_long_it_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    ending: Any = Ending()
    monkeypatch.setattr("actors.actor.time", SimpleNamespace(monotonic=lambda: ending.now))
    made = Actor.__new__(Actor)
    made._lifetime = made._writer = made._follower = made._collector = ending
    made._outbox = deque(["chunk"])  # type: ignore[list-item]
    made._drain()
    assert ending.sent == ["chunk", "rest"] and ending.now == 7.0
