"""The stack that an actor acts on, against one built the naive way; and the state of K environments' policy."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils import seeding

from actors.agent import Agent, Stack, policy_seed
from learner.algorithms.base import ActionBatch, Mode
from transport.experience import Categorical, Columns, ExperienceSpec, observed

SPEC = ExperienceSpec((observed("place", (), "<f4"),), Categorical(2), 8, stack=2)


class Counting:
    """Its state counts the steps of the episode; the action is what it was given."""

    state = {"count": (1,), "table": (2, 2)}

    def assign(self, seed: int, offset: int, count: int, total: int) -> None:
        raise AssertionError("nobody asked for a place")

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionBatch:
        self.seen = observation["place"]
        after = {name: values + 1 for name, values in state.items()}
        return ActionBatch(state["count"][:, 0].astype(np.int64), {"twice": 2 * state["count"][:, 0]}, after)

    def annotate(self, columns: Columns) -> Columns:
        return columns


def test_state_goes_from_step_to_step_and_begins_at_zero_with_each_episode() -> None:
    policy = Counting()
    agent = Agent(SPEC, policy, 3)
    agent.reset({"place": np.zeros(3, np.float32)})
    rows, actions = [], []
    for step in range(5):
        action, columns = agent.act("explore")
        rows.append(columns)
        actions.append(action.tolist())
        agent.push({"place": np.full(3, step + 1, np.float32)}, np.array([False, step == 1, step in (0, 3)]))
    assert actions == [[0, 0, 0], [1, 1, 0], [2, 0, 1], [3, 1, 2], [4, 2, 0]]
    for columns, action in zip(rows, actions, strict=True):
        assert columns.keys() == {"count", "table", "twice"}, "what act() gave, and the state that went in"
        assert columns["count"][:, 0].tolist() == action and columns["table"].shape == (3, 2, 2)
        assert columns["table"][:, 1, 1].tolist() == action and columns["twice"].tolist() == [2 * one for one in action]
    assert policy.seen.tolist() == [[3, 4], [3, 4], [4, 4]], "a stack does not look past its episode's first row"


def test_a_reset_forgets_the_state() -> None:
    policy = Counting()
    agent = Agent(SPEC, policy, 1)
    for _ in range(2):
        agent.reset({"place": np.zeros(1, np.float32)})
        assert [agent.act("greedy")[0].tolist() for _ in range(3)] == [[0], [1], [2]]


def naive_stack(history: list[np.ndarray], depth: int) -> np.ndarray:
    """The last `depth` of one episode's observations; missing ones repeat the first."""
    return np.stack([history[max(len(history) - depth + place, 0)] for place in range(depth)])


@pytest.mark.parametrize("depth", [1, 3, 4])
def test_a_stack_holds_the_last_observations_and_never_crosses_a_reset(depth: int) -> None:
    random = np.random.default_rng(depth)
    spec = ExperienceSpec((observed("image", (2, 3), "|u1"), observed("vector", (4,), "<f4")), Categorical(2), 8, stack=depth)
    stack = Stack(spec, 3)

    def observe() -> dict[str, np.ndarray]:
        return {"image": random.integers(256, size=(3, 2, 3)).astype(np.uint8), "vector": random.random((3, 4), np.float32)}

    seen = observe()
    stack.reset(seen)
    histories = [{name: [seen[name][k]] for name in seen} for k in range(3)]
    for _ in range(40):
        for name, stacked in stack.stacked.items():
            assert stacked.dtype == seen[name].dtype
            for k in range(3):
                assert np.array_equal(stacked[k], naive_stack(histories[k][name], depth))
        seen, started = observe(), random.random(3) < 0.2
        stack.push(seen, started)
        for k in range(3):
            for name in seen:
                histories[k][name] = [seen[name][k]] if started[k] else [*histories[k][name], seen[name][k]]


def test_a_reset_of_some_environments_leaves_the_others_and_what_was_handed_out_alone() -> None:
    spec = ExperienceSpec((observed("x", (1,), "<f4"),), Categorical(2), 8, stack=2)
    stack = Stack(spec, 2)
    stack.reset({"x": np.array([[1.0], [2.0]], np.float32)})
    held = stack.stacked["x"]
    stack.push({"x": np.array([[3.0], [4.0]], np.float32)}, np.array([False, False]))
    stack.reset({"x": np.array([[9.0], [9.0]], np.float32)}, np.array([False, True]))
    assert stack.stacked["x"][..., 0].tolist() == [[1.0, 3.0], [9.0, 9.0]]
    assert held[..., 0].tolist() == [[1.0, 1.0], [2.0, 2.0]]


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1])
def test_a_policy_draws_other_numbers_than_the_environments_of_its_seed(seed: int) -> None:
    drawn = {float(seeding.np_random(seed + k)[0].random()) for k in range(8)}
    assert not drawn & set(np.random.default_rng(policy_seed(seed)).random(1000).tolist())
