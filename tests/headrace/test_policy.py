"""Policies on observations of any space, one by one and in batches, without a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

import headrace
from actors.config import EnvConfig
from actors.envs.spec import experience_spec
from headrace.policy import Policy
from learner.algorithms.base import ActionBatch, Mode
from transport.experience import Categorical, Columns, ExperienceSpec, MultiCategorical


class Summing:
    """Acts by a weighted sum of the stack and, if it has memory, of all steps since the last reset."""

    def __init__(self, spec: ExperienceSpec, memory: bool = False) -> None:
        self.spec, self.calls = spec, list[int]()
        self.state: Mapping[str, tuple[int, ...]] = {"total": ()} if memory else {}

    def assign(self, seed: int, offset: int, count: int, total: int) -> None: ...

    def annotate(self, columns: Columns) -> Columns:
        return columns

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionBatch:
        count = len(next(iter(observation.values())))
        self.calls.append(count)
        flat = np.concatenate([part.reshape(count, -1).astype(np.float64) for part in observation.values()], axis=1)
        # float64 adds bytes exactly; float32 rounds them, in an order that differs with the size of the batch.
        total: np.ndarray = flat @ np.arange(1, flat.shape[1] + 1, dtype=np.float64)
        if state:
            total = total + state["total"]
        action = self.spec.action
        if isinstance(action, Categorical):
            chosen = np.round(total).astype(np.int64) % action.n
        elif isinstance(action, MultiCategorical):
            chosen = np.round(total).astype(np.int64)[:, None] % np.array(action.sizes)
        else:
            chosen = np.repeat(total[:, None] / 100, len(action.low), axis=1).astype(np.float32)
        return ActionBatch(chosen, {}, {"total": total} if state else {})


class Plain(gymnasium.Env):
    def __init__(self, observation: spaces.Space, action: spaces.Space) -> None:
        self.observation_space, self.action_space = observation, action


OBSERVATIONS: dict[str, spaces.Space] = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 2), np.float32),
    "frame": spaces.Box(0, 255, (16, 16), np.uint8),
    "channels first": spaces.Box(0, 255, (3, 16, 16), np.uint8),
    "channels last": spaces.Box(0, 255, (16, 16, 3), np.uint8),
    "stack of pictures": spaces.Box(0, 255, (4, 16, 16, 3), np.uint8),
    "choice": spaces.Discrete(5, start=2),
    "choices": spaces.MultiDiscrete([3, 4]),
    "switches": spaces.MultiBinary(4),
    "dict": spaces.Dict({"place": spaces.Discrete(5), "speed": spaces.Box(-1, 1, (2,), np.float32)}),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Dict({"frame": spaces.Box(0, 255, (16, 16), np.uint8)})]),
}
ACTIONS: dict[str, spaces.Space] = {
    "discrete": spaces.Discrete(7, start=-1),
    "choices": spaces.MultiDiscrete([3, 4], start=[1, 0]),
    "switches": spaces.MultiBinary((2, 2)),
    "box": spaces.Box(np.array([-1, 0], np.float32), np.array([1, 2], np.float32)),
    "matrix": spaces.Box(-1, 1, (2, 2), np.float64),
    "many choices": spaces.MultiDiscrete([3] * 12),
    "dict": spaces.Dict({"gear": spaces.Discrete(5, start=-2), "keys": spaces.MultiBinary(9)}),
    "tuple of boxes": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.Box(0, 3, (1, 2), np.float32)]),
}
FEW = [*((name, "discrete") for name in OBSERVATIONS), *(("vector", name) for name in ACTIONS)]


def make_policy(observation: str = "vector", action: str = "discrete", stack: int = 1, memory: bool = False) -> Policy:
    env, config = Plain(OBSERVATIONS[observation], ACTIONS[action]), EnvConfig(id="plain", stack=stack)
    spec = experience_spec(env, config, "none")
    return Policy(spec, Summing(spec, memory), config, (env.observation_space, env.action_space), {})


def batch_of(space: spaces.Space, samples: list[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: batch_of(part, [sample[name] for sample in samples]) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(batch_of(part, [sample[i] for sample in samples]) for i, part in enumerate(space.spaces))
    return np.stack(samples)


@pytest.mark.parametrize(("observation", "action"), FEW)
def test_a_batch_gets_the_actions_of_its_observations_in_one_call(observation: str, action: str) -> None:
    policy, space = make_policy(observation, action), OBSERVATIONS[observation]
    space.seed(1)
    samples = [space.sample() for _ in range(6)]
    many = list(iterate(batch_space(policy.action_space, 6), policy.predict(batch_of(space, samples))))
    assert policy.acting.calls == [6]  # type: ignore[attr-defined]
    ones = [policy.predict(sample) for sample in samples]
    flat = [[np.asarray(spaces.flatten(policy.action_space, one)).tobytes() for one in each] for each in (many, ones)]
    assert len(many) == 6 and flat[0] == flat[1]
    assert all(policy.action_space.contains(one) for one in ones)
    assert len(set(flat[1])) > 1


def test_a_policy_without_stack_and_memory_depends_on_the_observation_alone() -> None:
    policy = make_policy()
    first, second = np.full(3, 0.3, np.float32), np.full(3, 0.9, np.float32)
    alone = policy.predict(first)
    policy.predict(second)
    assert type(alone) is int
    assert policy.predict(first) == alone != policy.predict(second)
    assert policy.predict(first.tolist()) == alone


@pytest.mark.parametrize("options", [{"stack": 3}, {"memory": True}])
def test_a_stack_or_memory_lasts_until_reset(options: dict[str, Any]) -> None:
    policy, observation = make_policy(**options), np.array([0.5, 0.4, 0.2], np.float32)
    policy.predict(np.zeros(3, np.float32))
    begun = policy.predict(observation)
    later = policy.predict(observation)
    policy.reset()
    policy.predict(np.zeros(3, np.float32))
    assert policy.predict(observation) == begun != later


def test_reset_can_name_the_environments_of_a_batch_whose_episode_ended() -> None:
    policy, observation = make_policy(memory=True), np.full((2, 3), 1.0, np.float32)
    policy.predict(observation)
    policy.reset([False, True])
    again = policy.predict(observation)
    assert again.tolist() == [12 % 7 - 1, 6 % 7 - 1]
    with pytest.raises(headrace.ConfigurationError, match=r"`ended` has the shape \(3,\), but the last predict\(\) had 2"):
        policy.reset([True] * 3)


@pytest.mark.parametrize(
    ("name", "observation", "words"),
    [
        ("vector", np.zeros(4), r"observation has the shape \[4\]; the policy needs \[3\]"),
        ("vector", np.zeros((2, 2, 3)), r"\[2, 2, 3\]"),
        ("vector", 1.0, r"the shape \[\]"),
        ("dict", {"place": np.zeros(2), "speed": np.zeros((3, 2))}, r"speed has the shape \[3, 2\]"),
        ("dict", {"place": 0}, "speed"),
        ("choice", 9, "choice 7 of 5"),
    ],
)
def test_an_observation_of_another_form_is_refused_in_one_line(name: str, observation: Any, words: str) -> None:
    with pytest.raises(headrace.ConfigurationError, match=words) as caught:
        make_policy(name).predict(observation)
    assert "\n" not in str(caught.value)
