"""A person steers an actor: their keys are what is stepped and marked, and all else stays as it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from actors.actor import Actor
from actors.collector import Collector
from actors.config import ActorProcess, ActorsConfig, ActorSettings, EnvConfig
from learner.algorithms.base import ActionBatch
from learner.algorithms.dqn.config import DqnConfig
from tests.actors.playing import spec_of
from tests.flow.counting_env import ACTIONS
from tests.harness.waiting import Clock
from transport.experience import PERSON, Categorical, Chunk, Columns, Continuous, ExperienceSpec, observed
from transport.messages.control import STEER_SECONDS, Assignment, Seen, Steer
from transport.metrics import Metrics
from transport.names import Named

VERSION = 3
SPEC = ExperienceSpec((observed("observation", (8,), "<f4"),), Categorical(ACTIONS), chunk_length=4, n_step=2)
PENDULUM = EnvConfig("Pendulum-v1")


class Sleeping(Clock):
    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Policy:
    """Takes the action 1, or the middle of what there is."""

    state: dict[str, tuple[int, ...]] = {}

    def __init__(self, spec: ExperienceSpec) -> None:
        self._spec = spec

    def assign(self, seed: int, offset: int, count: int, total: int) -> None: ...

    def act(self, observation: Columns, state: Columns, mode: str) -> ActionBatch:
        count = len(next(iter(observation.values())))
        middle = np.zeros((count, 1), np.float32)
        return ActionBatch(middle if isinstance(self._spec.action, Continuous) else np.ones(count, np.int64), {}, {})

    def annotate(self, columns: Columns) -> Columns:
        return columns


class Driven:
    """An actor with two environments, and a person whose messages arrive when the test says so."""

    paused = stopping = False
    look = None

    def __init__(self, monkeypatch: pytest.MonkeyPatch, env: EnvConfig | None = None, spec: ExperienceSpec = SPEC) -> None:
        config = env or EnvConfig("tests.flow.counting_env:vector")
        settings = ActorSettings(0, ActorProcess(1, {}, {}, ActorsConfig(1, 2)), config, Named("dqn", DqnConfig()), spec)
        algorithm: Any = SimpleNamespace(acting=lambda spec, inference: Policy(spec), begins_random=False)
        self.clock, self.metrics, self.seen = Sleeping(), Metrics(), list[Seen]()
        monkeypatch.setattr("actors.steering.time", self.clock)
        inference: Any = None
        self.collector = Collector(settings, algorithm, inference, Assignment(0, 2, 3), self.metrics, clock=lambda: 0.0)
        self.collector.reset()
        self.steer: Steer | None = None
        self.actor = Actor.__new__(Actor)
        outside: Any = self
        self.actor._lifetime, self.actor._settings, self.actor._collector = outside, settings, self.collector
        self.actor._follower = SimpleNamespace(version=VERSION)  # type: ignore[assignment]
        self.actor._steering, self.actor._outbox = None, deque()

    def press(self, *keys: str, number: int, ends: bool = False) -> None:
        self.steer = Steer("actor-0", number, 9, keys, ends)

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.actor._step()

    def beat(self) -> None: ...

    def listen(self) -> None: ...

    def show(self, seen: Seen, parts: Sequence[bytes]) -> None:
        self.seen.append(seen)
        self.shown = b"".join(parts)

    def rows(self, stream: int) -> dict[str, np.ndarray]:
        """All rows with an action that have left, of one environment."""
        self.actor._outbox.extend(self.collector.drain(VERSION))
        own: list[Chunk] = [chunk for chunk in self.actor._outbox if chunk.stream == stream]
        joined = {name: np.concatenate([chunk.columns[name][: chunk.length] for chunk in own]) for name in own[0].columns}
        return {name: values[joined["valid"] != 0] for name, values in joined.items()}


def test_the_keys_that_are_held_are_what_is_stepped_and_exactly_these_rows_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Driven(monkeypatch)
    world.turn(5)
    pressed = [(), ("3",), ("4",), (), ("2",), ("0",), ("3",), ("4",), ("left",)]
    for number, keys in enumerate(pressed):
        world.press(*keys, number=number)
        world.turn()
    world.press(number=99, ends=True)
    world.turn(5)
    mine, others = world.rows(0), world.rows(1)
    assert mine["action"].tolist() == [1] * 5 + [3, 4, 2, 0, 3, 4] + [1] * 5, "each action has a key"
    assert mine["policy_version"].tolist() == [VERSION] * 5 + [PERSON] * 6 + [VERSION] * 5
    assert (others["action"] == 1).all() and (others["policy_version"] == VERSION).all() and len(others["action"]) == 16
    # The environment says which action it was given, in its reward and in the observation after it.
    for rows in (mine, others):
        assert (rows["reward"] // 512 == rows["action"]).all()
        goes_on = np.flatnonzero(np.diff(rows["episode_step"]) == 1)
        assert (rows["observation"][goes_on + 1, 6] == rows["action"][goes_on]).all()
    assert world.metrics.value("human_steps") == 6 and world.metrics.value("steps") == 32
    assert [seen.number for seen in world.seen] == [*range(9), 99], "each message has an answer"


def test_where_no_key_is_an_action_keys_stay_held_between_messages_and_each_is_answered_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Driven(monkeypatch, PENDULUM, replace(spec_of(PENDULUM), chunk_length=4))
    world.press("right", number=5)
    world.turn(3)
    assert [(seen.number, seen.steered, seen.step) for seen in world.seen] == [(5, True, 1)]
    assert any("right" in line for line in world.seen[0].keys)
    world.press(number=6, ends=True)
    world.turn(3)
    assert [(seen.number, seen.steered, seen.keys) for seen in world.seen[1:]] == [(6, False, ())]
    assert world.steer is None and (world.rows(0)["policy_version"] == PERSON).sum() == 3


def test_an_actor_is_as_slow_as_a_person_only_while_one_steers(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Driven(monkeypatch)
    began = world.clock.now
    world.turn(100)
    assert world.clock.now == began
    for number in range(31):
        world.press("2", number=number)
        world.turn()
    assert world.clock.now - began == pytest.approx(2.0, abs=0.01), "30 pauses between steps, 15 in a second"


def test_without_a_sign_of_the_person_for_a_second_it_goes_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Driven(monkeypatch)
    world.press("4", number=1)
    began = world.clock.now
    while world.steer is not None:
        world.turn()
    assert STEER_SECONDS < world.clock.now - began < STEER_SECONDS + 0.1
    steps = world.metrics.value("human_steps")
    world.turn(9)
    assert world.metrics.value("human_steps") == steps == 1 and not world.seen[-1].steered


def test_a_person_at_the_bounds_of_a_continuous_action_is_stored_as_finite_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(spec_of(PENDULUM), chunk_length=4)
    world = Driven(monkeypatch, PENDULUM, spec)
    for number, key in enumerate(("left", "right", "left")):
        world.press(key, number=number)
        world.turn()
    world.press(number=9)
    world.turn(3)
    rows = world.rows(0)
    action = rows["action"][rows["policy_version"] == PERSON]
    assert np.isfinite(action).all() and isinstance(spec.action, Continuous)
    assert np.allclose(spec.action.bounded(action)[:, 0], [-2, 2, -2, 0, 0, 0], atol=1e-3)


def test_an_algorithm_that_learns_from_its_own_rollouts_is_not_steered_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Driven(monkeypatch, spec=replace(SPEC, unit="rollouts", n_step=1))
    world.press("2", number=1)
    world.turn(5)
    assert "dqn learns from what its own policy has just done" in world.seen[0].refused and not world.seen[0].steered
    assert len(world.seen) == 1 and world.steer is None and (world.rows(0)["policy_version"] == VERSION).all()


def test_a_person_sees_what_the_environment_draws_also_without_a_render_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("pygame")
    world = Driven(monkeypatch, PENDULUM, replace(spec_of(PENDULUM), chunk_length=4))
    world.press("left", number=1)
    world.turn()
    assert world.seen[0].picture == (500, 500) and len(world.shown) == 3 * 4 + 3 * 500 * 500
    assert len(np.unique(np.frombuffer(world.shown[12:], np.uint8))) > 2, "something is drawn"
    assert world.collector.env.example.render_mode is None, "and nothing once the person has left"
