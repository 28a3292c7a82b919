"""What an actor shows of itself when an operator looks, and that it does nothing where none does."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from actors.actor import Actor
from actors.agent import Agent
from actors.collector import Collector
from actors.envs.vector import VectorStep
from learner.algorithms.base import ActionBatch, Explanation, Mode
from tests.actors.test_actor import make_settings
from transport.experience import Categorical, Columns, ExperienceSpec, observed
from transport.messages.codec import pack, unpack
from transport.messages.control import Look, Seen
from transport.messages.fields import LOOK_BYTES, LOOK_FIGURES
from transport.metrics import Metrics

SPEC = ExperienceSpec((observed("frame", (2, 3), "|u1", 1 / 255), observed("place", (), "<f4")), Categorical(2), 8, stack=2)
LARGE = ExperienceSpec((observed("frame", (LOOK_BYTES // 2 + 1,), "|u1"),), Categorical(2), 8, stack=2)


class Policy:
    """Its state counts the steps of the episode."""

    state = {"count": (1,)}

    def __init__(self, figures: int = 2) -> None:
        self.explained, self.figures = 0, figures
        self.acted: list[tuple[Columns, Columns]] = []  # observation and state of each act()

    def assign(self, seed: int, offset: int, count: int, total: int) -> None: ...

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionBatch:
        self.acted.append((observation, state))
        return ActionBatch(np.zeros(2, np.int64), {}, {"count": state["count"] + 1})

    def explain(self, observation: Columns, state: Columns) -> Explanation:
        self.explained += 1
        figures = np.full((2, self.figures), state["count"][0, 0], np.float32)
        figures[0, 1] = np.nan
        return Explanation("action value", figures, (0.0, 9.0))

    def annotate(self, columns: Columns) -> Columns:
        return columns


class Broken(Policy):
    def explain(self, observation: Columns, state: Columns) -> Explanation:
        raise ZeroDivisionError("in a user's code")


class World:
    """All that surrounds an actor's steps. Environments give their steps as pictures and numbers."""

    version, levels, stopping, action_names = 7, 0, False, ["left", "rïght"]
    seeded = ()

    def __init__(self, spec: ExperienceSpec, policy: Policy) -> None:
        self.look: Look | None = None
        self.steer = None
        self.shown: list[tuple[Seen, bytes]] = []
        self.steps, self.spec, self.policy = 0, spec, policy
        made = self.actor = Actor.__new__(Actor)
        made._steering = None
        outside: Any = self
        made._lifetime = made._follower = outside
        made._settings, made._outbox = make_settings(0, 1, 2), deque()
        object.__setattr__(made._settings, "spec", spec)
        collector = made._collector = Collector.__new__(Collector)
        collector.spec, collector.env, collector._metrics = spec, outside, Metrics()
        collector.agent, collector._recent = Agent(spec, policy, 2), deque()
        collector.chunker = type("Chunker", (), {"step": lambda *given: [], "seeded": lambda *given: None})()  # type: ignore[assignment]
        collector._random_until = -1
        collector.reset()

    def reset(self) -> Columns:
        return self.observe()

    def observe(self) -> Columns:
        return {
            field.name: np.full((2, *field.shape), self.steps, field.dtype)
            + np.arange(2, dtype=field.dtype).reshape(2, *[1] * len(field.shape))
            for field in self.spec.fields
        }

    def step(self, actions: np.ndarray) -> VectorStep:
        self.steps += 1
        no = np.zeros(2, bool)
        observation = self.observe()
        return VectorStep(observation, np.zeros(2), no, no, observation, [])

    def progress(self, k: int) -> tuple[int, float]:
        assert k == 0
        return self.steps, 0.5 * self.steps

    def show(self, seen: Seen, parts: Sequence[bytes]) -> None:
        self.look = None
        self.shown.append((seen, b"".join(parts)))

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.actor._step()


def test_nothing_is_explained_or_sent_while_nobody_looks() -> None:
    world = World(SPEC, Policy())
    world.turn(5)
    assert world.policy.explained == 0 and not world.shown
    world.look = Look("actor-0", 1)
    world.turn(5)
    assert world.policy.explained == 1 and len(world.shown) == 1, "once for each look"


def test_what_is_shown_is_what_the_policy_acts_on_in_the_first_environment() -> None:
    world = World(SPEC, Policy())
    world.turn(3)
    world.look = Look("actor-0", 17)
    world.turn()
    (seen, payload), acted = world.shown[0], world.policy.acted[-1][0]
    assert payload == acted["frame"][0].tobytes() + acted["place"][0].tobytes() and acted["place"].tolist() == [[2, 3], [3, 4]]
    assert (seen.actor, seen.number, seen.policy_version, seen.step, seen.total_reward) == ("actor-0", 17, 7, 3, 1.5)
    assert seen.kind == "action value" and seen.actions == ("left", "r?ght") and seen.bounds == (0.0, 9.0)
    assert seen.figures[0] == 3 and np.isnan(seen.figures[1]), "forbidden"
    found = unpack(pack(seen))
    assert found.actions == seen.actions and found.figures[0] == 3


def test_a_look_leaves_a_recurrent_state_as_it_is() -> None:
    states = []
    for looks in (False, True):
        world = World(SPEC, Policy())
        for number in range(6):
            world.look = Look("actor-0", number) if looks else None
            world.turn()
        states.append([state["count"].tolist() for _, state in world.policy.acted])
    assert states[0] == states[1] and states[0][-1] == [[5], [5]]


def test_figures_and_observations_have_limits() -> None:
    world = World(LARGE, Policy(figures=LOOK_FIGURES + 9))
    world.look = Look("actor-0", 1)
    world.turn()
    seen, payload = world.shown[0]
    assert not payload and len(seen.figures) == LOOK_FIGURES and unpack(pack(seen)).kind == seen.kind


def test_a_policy_that_cannot_explain_itself_acts_on(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(SPEC, Broken())
    world.look = Look("actor-0", 1)
    world.turn(2)
    seen, payload = world.shown[0]
    assert seen.figures == () and payload and len(world.policy.acted) == 2
    assert capsys.readouterr().out == "cannot explain its actions: ZeroDivisionError: in a user's code\n"
