"""Stack and state of K environments' policy."""

from __future__ import annotations

import numpy as np

from actors.agent import Agent
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


def test_a_policy_is_told_of_the_returns_of_episodes_if_it_wants_to_know() -> None:
    class Curious(Counting):
        def ended(self, where: np.ndarray, returns: np.ndarray) -> None:
            told.append((where.tolist(), returns.tolist()))

    told: list[tuple[list[int], list[float]]] = []
    for policy in (Counting(), Curious()):
        Agent(SPEC, policy, 2).ended([1, 0], [0.5, -3.0])
    assert told == [([1, 0], [0.5, -3.0])]
