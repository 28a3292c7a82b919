"""Environments with a vector_entry_point: walks of a fixed length."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

LENGTH = 5
SEEN, ACTIONS = spaces.Box(0.0, 100.0, (2,), np.float32), spaces.Discrete(2)


class Walk(gymnasium.Env):
    """Observation: steps of the episode, and a number drawn at its start."""

    observation_space: spaces.Space = SEEN
    action_space = ACTIONS

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = np.array([0.0, self.np_random.uniform(0, 100)], np.float32)
        return self.at.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at[0] += 1
        ended = bool(self.at[0] == LENGTH)
        return self.at.copy(), float(action), ended, False, {"is_success": True} if ended else {}


class Walks(VectorEnv):
    """Many of them; each may be reset alone."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}
    alone = True

    def __init__(self, num_envs: int, max_episode_steps: int = 0) -> None:
        self.num_envs, self.limit = num_envs, max_episode_steps
        self.single_observation_space, self.single_action_space = SEEN, ACTIONS
        self.observation_space = gymnasium.vector.utils.batch_space(SEEN, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(ACTIONS, num_envs)
        self.at = np.zeros((num_envs, 2), np.float32)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        where = options["reset_mask"] if options and self.alone else np.ones(self.num_envs, bool)
        self.at[where, 0] = 0
        self.at[where, 1] = self.np_random.uniform(0, 100, int(where.sum()))
        return self.at.copy(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self.at[:, 0] += 1
        ended = self.at[:, 0] == LENGTH
        limited = self.at[:, 0] == self.limit
        return self.at.copy(), actions.astype(np.float64), ended, limited, {"is_success": ended, "_is_success": ended}


class WalksAtOnce(Walks):
    """A reset resets all."""

    alone = False


class WalksAtOnceInPlace(WalksAtOnce):
    """Gives one array each time."""

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return self.at, super().reset(**options)[1]

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        return self.at, *super().step(actions)[1:]


OF_DICTS = spaces.Dict({"at": SEEN})


class WalkOfDicts(Walk):
    observation_space = OF_DICTS

    def reset(self, **options: Any) -> Any:
        at, info = super().reset(**options)
        return {"at": at}, info

    def step(self, action: int) -> Any:
        at, *result = super().step(action)
        return {"at": at}, *result


class WalksOfDicts(Walks):
    """Its score is not of one environment."""

    def __init__(self, num_envs: int, max_episode_steps: int = 0) -> None:
        super().__init__(num_envs, max_episode_steps)
        self.single_observation_space = OF_DICTS
        self.observation_space = gymnasium.vector.utils.batch_space(OF_DICTS, num_envs)

    def reset(self, **options: Any) -> Any:
        at, info = super().reset(**options)
        return {"at": at}, info

    def step(self, actions: np.ndarray) -> Any:
        at, *result, info = super().step(actions)
        return {"at": at}, *result, info | {"score": 1.0}


HERE = __name__
for name, walk, batch in (
    ("Walks-v0", "Walk", "Walks"),
    ("WalksAtOnce-v0", "Walk", "WalksAtOnce"),
    ("WalksAtOnceInPlace-v0", "Walk", "WalksAtOnceInPlace"),
    ("WalksOfDicts-v0", "WalkOfDicts", "WalksOfDicts"),
):
    gymnasium.register(id=name, entry_point=f"{HERE}:{walk}", vector_entry_point=f"{HERE}:{batch}")


def register_envs() -> None:
    gymnasium.register(id="WalkLater-v0", entry_point=f"{HERE}:Walk")
