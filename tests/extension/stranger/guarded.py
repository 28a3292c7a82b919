"""An environment that forbids actions, and raises where a forbidden one arrives."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

ACTIONS = 5


class Guarded(gymnasium.Env):
    """Each step allows some actions. The reward is the action's number; an episode is ten steps."""

    def __init__(self, where: Literal["observation", "info"] = "observation") -> None:
        self.where = where
        self.action_space = spaces.Discrete(ACTIONS)
        place = spaces.Box(0.0, 1.0, (10,), np.float32)
        self.observation_space = place
        if where == "observation":
            self.observation_space = spaces.Dict({"place": place, "action_mask": spaces.MultiBinary(ACTIONS)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return self._seen()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.mask[action]:
            raise ValueError(f"forbidden action {action}: the mask is {self.mask.tolist()}")
        self.place += 1
        seen, info = self._seen()
        return seen, float(action), False, self.place == 9, info

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        self.mask = self.np_random.integers(2, size=ACTIONS).astype(np.int8)
        self.mask[self.np_random.integers(ACTIONS)] = 1
        place = np.eye(10, dtype=np.float32)[self.place]
        return (
            ({"place": place, "action_mask": self.mask}, {})
            if self.where == "observation"
            else (place, {"action_mask": self.mask})
        )
