"""Episodes of random plain observations and actions, of any spaces."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from actors.config import EnvConfig
from actors.datasets.base import Episode, Space
from actors.envs.spec import experience_spec, leaves
from learner.algorithms.base import Needs
from transport.experience import ExperienceSpec

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
REALS = spaces.Box(np.array([-1.0, -2.0], np.float32), np.array([1.0, 3.0], np.float32))
MANY = spaces.Dict(
    {"kind": spaces.Discrete(3, start=2), "parts": spaces.MultiDiscrete([2, 4]), "bits": spaces.MultiBinary(3), "where": BOX}
)
PICTURE = spaces.Box(0, 255, (40, 36, 3), np.uint8)
DICT_ACTION = spaces.Dict({"a": spaces.Discrete(2, start=3), "b": spaces.Discrete(3)})


class Memory:
    """A source of these episodes."""

    about = "memory"

    def __init__(self, found: list[Episode], spaces_of: tuple[Space, Space] | None) -> None:
        self._found, self.spaces = found, spaces_of

    def episodes(self) -> Any:
        return iter(self._found)


def spec_of(observation: Space, action: Space, stack: int = 1, n_step: int = 1) -> ExperienceSpec:
    env = gymnasium.Env()
    env.observation_space, env.action_space = observation, action
    return experience_spec(env, EnvConfig(id="toy", stack=stack, chunk_length=4), "none", Needs(n_step=n_step))


def some(observation: Space, action: Space, lengths: list[int], seed: int = 0) -> list[Episode]:
    """Every second episode terminates."""
    observation.seed(seed), action.seed(seed)
    random = np.random.default_rng(seed)
    found = []
    for number, steps in enumerate(lengths):
        seen = [observation.sample() for _ in range(steps + 1)]
        names = [name for name, _, _ in leaves(observation)]
        parts = {name: np.stack([part_of(observation, one, name) for one in seen]) for name in names}
        taken = [entries(action, action.sample()) for _ in range(steps)]
        found.append(Episode(parts, np.stack(taken), random.normal(size=steps).astype(np.float32), number % 2 == 0))
    return found


def part_of(space: Space, observation: Any, wanted: str) -> np.ndarray:
    return next(np.asarray(value) for name, _, value in leaves(space, observation) if name == wanted)


def entries(space: Space, action: Any) -> np.ndarray:
    if isinstance(space, spaces.Dict):
        return np.array([int(action[name]) for name in space.spaces])
    return np.asarray(action)


def same(ours: Episode, theirs: Episode, rounded: float = 1e-3) -> None:
    """Actions at their bounds lose a little."""
    assert ours.terminated == theirs.terminated and ours.observations.keys() == theirs.observations.keys()
    for name, values in ours.observations.items():
        upto = -1 if ours.terminated else None  # replay does not keep what follows a terminal state
        np.testing.assert_array_equal(values[:upto], theirs.observations[name][:upto], err_msg=name)
    np.testing.assert_allclose(ours.actions, theirs.actions, atol=rounded)
    np.testing.assert_array_equal(ours.rewards, theirs.rewards)
