"""Goals that were achieved later: which, where from, and what they would have earned."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from actors.chunker import Chunker
from actors.config import EnvConfig
from actors.envs.make import read_env
from actors.envs.preflight.parent import preflight
from actors.envs.spec import experience_spec
from actors.envs.vector import VectorEnv
from actors.hindsight import GoalReward, Hindsight, count_later_rows
from learner.algorithms.base import Needs, join
from learner.algorithms.columns import without_hindsight
from replay.config import ReplayConfig
from replay.table.layout import layout
from replay.table.ring import Ring
from tests.actors.playing import TOYS, spec_of
from tests.actors.toy_envs import Plane
from transport.experience import Chunk, Column, Columns, Continuous, ExperienceSpec, observed

OWN = 250  # the goal that rows have themselves, where all others are below


def goal_spec(length: int = 16, hindsight: int = 4, goal: Column | None = None, stack: int = 1) -> ExperienceSpec:
    """Goals are numbers that count the rows of all streams, so that a test can tell which row a goal is from."""
    achieved = goal or observed("achieved_goal", (1,), "<f4")
    fields = (observed("observation", (1,), "<f4"), achieved, msgspec.structs.replace(achieved, name="desired_goal"))
    return join(ExperienceSpec(fields, Continuous((-1.0,), (1.0,)), length, stack), Needs(goals=hindsight))


class Difference:
    """A goal environment as far as hindsight asks: the reward is how far the goal lies ahead, negative."""

    calls = 0

    @property
    def unwrapped(self) -> Difference:
        return self

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: dict[str, Any]) -> np.ndarray:
        assert achieved.shape == desired.shape and achieved.ndim == 2 and info == {}
        self.calls += 1
        return -np.abs(achieved - desired)[:, 0]


def make_columns(spec: ExperienceSpec, *chunks: list[tuple[int, str]]) -> Columns:
    """Chunks [M, rows] of episodes as [(steps, how it ends)]; where none is named, rows of an episode under way fill the rest."""
    rows = spec.rows(spec.chunk_length)
    columns = {
        column.name: np.zeros((len(chunks), rows, *column.shape), column.dtype) for column in without_hindsight(spec).columns
    }
    columns["valid"][...] = 1
    columns["desired_goal"][...] = OWN
    columns["reward"][...] = 7
    columns["achieved_goal"][...] = np.arange(len(chunks) * rows).reshape(len(chunks), rows, 1)
    for m, episodes in enumerate(chunks):
        row = 0
        for steps, end in [*episodes, (rows, "")]:
            count = steps + (end == "truncated")
            age = np.arange(count)[: rows - row]
            columns["episode_step"][m, row : row + count] = age
            if end and row + steps <= rows:
                columns[end][m, row + steps - 1] = 1
            if end == "truncated" and row + steps < rows:
                columns["valid"][m, row + steps] = 0
            row += count
            if row >= rows:
                break
    return columns


def last_of_episode(columns: Columns, m: int, row: int) -> int:
    """The naive way: on until something ends it."""
    rows = columns["valid"].shape[1]
    while row + 1 < rows and not columns["terminated"][m, row] and columns["valid"][m, row]:
        row += 1
    return row


CASES = [
    [(5, "terminated"), (4, "truncated")],
    [(1, "terminated"), (1, "truncated"), (1, "terminated"), (2, "truncated"), (3, "terminated")],
    [],
    [(16, "truncated")],  # the last observation is the chunk's last row
    [(17, "terminated")],  # as is the last step
]


@pytest.mark.parametrize("stack", [1, 3])
def test_goals_were_achieved_later_in_the_episode_and_rewards_are_those_of_the_very_next_step(
    stack: int,
) -> None:
    spec, env = goal_spec(stack=stack), Difference()
    before = make_columns(spec, *CASES)
    columns = Hindsight(spec, GoalReward(env.compute_reward), 0)({name: column.copy() for name, column in before.items()})
    for name, kept in before.items():
        assert np.array_equal(columns[name], kept), f"{name} is left alone"
    for column in spec.columns:
        assert columns[column.name].dtype == np.dtype(column.dtype), column.name
        assert columns[column.name].shape == (len(CASES), spec.rows(16), *column.shape), column.name
    chunks, rows = before["valid"].shape
    for m in range(chunks):
        for row in range(rows):
            last = last_of_episode(before, m, row)
            goal, reward = columns["hindsight_goal"][m, row, :, 0], columns["hindsight_reward"][m, row]
            if last == row:
                assert (goal == OWN).all() and (reward == 7).all()
                continue
            achieved = before["achieved_goal"][m, :, 0]
            assert np.isin(goal, achieved[row + 1 : last + 1]).all(), (m, row, last, goal)
            assert np.array_equal(reward, -np.abs(achieved[row + 1] - goal))
    assert env.calls == 1, "once for all chunks that leave together"


def test_each_later_row_is_as_likely() -> None:
    spec = goal_spec(length=8, hindsight=16)
    chunks = 500
    columns = Hindsight(spec, GoalReward(Difference().compute_reward), 1)(make_columns(spec, *[[(6, "truncated")]] * chunks))
    first = columns["achieved_goal"][:, 0, 0]
    drawn = Counter((columns["hindsight_goal"][:, 1, :, 0] - first[:, None]).astype(int).ravel().tolist())
    assert set(drawn) == {2, 3, 4, 5, 6}, "row 6 holds the last observation"
    expected = chunks * 16 / 5
    assert sum((count - expected) ** 2 / expected for count in drawn.values()) < 23.5  # chi-square, 4 degrees, p = 1e-4


def test_a_goal_that_rests_as_bytes_is_rewarded_as_the_learner_will_see_it() -> None:
    spec = goal_spec(goal=observed("achieved_goal", (1,), "|u1", scale=0.5, offset=-3.0))
    columns = make_columns(spec, [(16, "truncated")])
    columns = Hindsight(spec, GoalReward(Difference().compute_reward), 0)(columns)
    assert columns["hindsight_goal"].dtype == np.uint8
    goal = columns["hindsight_goal"][0, 2, :, 0].astype(float) * 0.5 - 3.0
    assert np.allclose(columns["hindsight_reward"][0, 2], -np.abs(3 * 0.5 - 3.0 - goal))


def test_later_rows_count_to_the_end_of_the_episode_or_of_the_chunk() -> None:
    ages = np.array([[0, 1, 2, 0, 0, 1], [7, 8, 9, 10, 11, 12]], np.int32)
    assert count_later_rows(ages).tolist() == [[2, 1, 0, 0, 1, 0], [5, 4, 3, 2, 1, 0]]


@pytest.mark.parametrize("stack", [1, 2])
def test_every_item_that_is_drawn_has_goals_that_its_episode_achieved_later(stack: int) -> None:
    spec = goal_spec(length=8, stack=stack)
    random = np.random.default_rng(0)
    streams = 5
    hindsight = Hindsight(spec, GoalReward(Difference().compute_reward), 0)
    chunker = Chunker(spec, streams, 1e9, annotate=hindsight, staggered=True)
    table = Ring(spec, ReplayConfig(capacity=2_000, min_size=1, selector="uniform"), 0)
    rows: list[tuple[int, int]] = []  # stream and episode of each row, by its achieved goal
    episode = np.zeros(streams, int)

    def observe() -> Columns:
        first = len(rows)
        rows.extend((k, int(episode[k])) for k in range(streams))
        number = np.arange(first, first + streams, dtype=np.float32)[:, None]
        return {"observation": number, "achieved_goal": number, "desired_goal": np.full((streams, 1), -5, np.float32)}

    observation = observe()
    chunks: list[Chunk] = []
    for step in range(200):
        terminated = random.random(streams) < 0.1
        truncated = ~terminated & (random.random(streams) < 0.1)
        following = observe()
        action, reward = np.zeros((streams, 1), np.float32), np.full(streams, 7, np.float32)
        chunks += chunker.step(observation, action, reward, terminated, truncated, following, step, {})
        episode += terminated | truncated
        observation = observe() if (terminated | truncated).any() else following
        if (terminated | truncated).any():  # those that go on were seen already
            for name, values in observation.items():
                values[~(terminated | truncated)] = following[name][~(terminated | truncated)]
    chunks += chunker.drain(observation, 200)
    for chunk in chunks:
        table.insert(chunk)
    arrangement = layout(spec, 512)
    batch = arrangement.view(np.zeros(arrangement.slot_bytes, np.uint8))
    table.sample(batch)
    told = 0
    for b in range(512):
        now = int(batch["observation/achieved_goal"][b, stack - 1, 0])
        for goal, reward in zip(batch["hindsight_goal"][b, :, 0].tolist(), batch["hindsight_reward"][b].tolist(), strict=True):
            if goal == -5:
                assert reward == 7
                continue
            told += 1
            assert goal > now and rows[int(goal)] == rows[now]
            came_to = int(batch["observation/achieved_goal"][b, stack, 0])
            assert reward == -abs(came_to - goal) and rows[came_to] == rows[now]
    assert told > 512


def test_what_travels_and_rests_through_an_environment_is_what_its_compute_reward_says() -> None:
    config = EnvConfig(id=f"{TOYS}:Plane", chunk_length=16)
    spec = spec_of(config, Needs(goals=4))
    env = VectorEnv(config, spec, 3, [0, 1, 2])
    chunker = Chunker(spec, 3, 1e9, annotate=Hindsight(spec, GoalReward(env.compute_reward), 0))
    observation, random = env.reset(), np.random.default_rng(0)
    chunks: list[Chunk] = []
    for _ in range(60):
        action = random.standard_normal((3, 2)).astype(np.float32)
        step = env.step(np.tanh(action))
        chunks += chunker.step(observation, action, step.reward, step.terminated, step.truncated, step.final_observation, 0, {})
        observation = step.observation
    plane, successes = Plane(), 0
    for chunk in chunks:
        columns = chunk.columns
        for row in np.flatnonzero(columns["valid"][: chunk.length]):
            if columns["valid"][row + 1] or columns["truncated"][row]:
                for goal, reward in zip(columns["hindsight_goal"][row], columns["hindsight_reward"][row], strict=True):
                    assert reward == plane.compute_reward(columns["achieved_goal"][row + 1], goal, {})
                    successes += int(reward == 0)
    assert successes > 50, "hindsight is there to show what success is"


def test_only_environments_with_goals_have_hindsight() -> None:
    for name, expected in ((f"{TOYS}:Plane", 4), ("Pendulum-v1", 0), (f"{TOYS}:Rover", 0)):
        assert spec_of(EnvConfig(id=name), Needs(goals=4)).goals == expected
    plane = Plane()
    parts = {"observation": (2,), "achieved_goal": (2,), "desired_goal": (3,)}
    plane.observation_space = spaces.Dict({name: spaces.Box(-1, 1, shape, np.float32) for name, shape in parts.items()})
    assert experience_spec(plane, EnvConfig(id="plane"), "none", Needs(goals=4)).goals == 0


def test_the_preflight_says_whether_an_environment_has_goals_whose_rewards_can_be_computed() -> None:
    for name, goals in ((f"{TOYS}:Plane", True), ("CartPole-v1", False)):
        found = preflight(EnvConfig(id=name), "none")
        assert found.goals == goals and not found.goal_complaint and found.spec.goals == 0, "that is for an algorithm to want"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("PlaneForOne", "compute_reward of 20 goals gave shape (1,), not (20,)"),
        ("PlanePushed", "for a step whose reward was -1.5, so hindsight would learn from wrong rewards"),
        ("PlaneOfInfo", "compute_reward of 20 goals: KeyError: 'force'"),
    ],
)
def test_a_reward_that_cannot_be_computed_from_goals_is_one_line_of_complaint(name: str, message: str) -> None:
    complaint = preflight(EnvConfig(id=f"{TOYS}:{name}"), "none").goal_complaint
    assert message in complaint and "\n" not in complaint and "--algorithm.hindsight 0" in complaint


@pytest.mark.parametrize(("curriculum", "complains"), [(True, True), (False, False)])
def test_a_curriculum_whose_levels_have_rewards_of_their_own_excludes_hindsight(curriculum: bool, complains: bool) -> None:
    config = read_env({"id": "robot", "backend": "kinematic", "reward": "dense", "curriculum": curriculum})
    complaint = preflight(config, "none").goal_complaint
    assert bool(complaint) == complains and ("turn it off by --algorithm.hindsight 0" in complaint) == complains
