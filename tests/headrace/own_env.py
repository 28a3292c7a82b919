"""An environment as a user would write it: a batch of choices as action, a Dict with a choice as observation."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from transport.lifetime import PARENT_VARIABLE


class Corridor(gymnasium.Env):
    """Walk to the right end; the second choice of the action does nothing."""

    observation_space = spaces.Dict({"place": spaces.Discrete(5, start=1), "speed": spaces.Box(-1, 1, (2, 2), np.float32)})
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._place = 1
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._place = max(self._place + (1 if action[0] else -1), 1)
        return self._seen(), float(self._place == 5), self._place == 5, False, {}

    def _seen(self) -> dict[str, Any]:
        return {"place": self._place, "speed": np.full((2, 2), self._place / 10, np.float32)}


def make_corridor() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Corridor(), 20)


class Breaks(Corridor):
    """Works for a check before launch, and fails in every run, also when it is made anew."""

    steps = 0  # of all environments of a process

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        Breaks.steps += 1
        if Breaks.steps > 100 and PARENT_VARIABLE in os.environ:
            raise RuntimeError("this corridor has collapsed")
        return super().step(action)


class Waits(Corridor):
    """Works for a check before launch; in a run its first episode never begins."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        while PARENT_VARIABLE in os.environ:
            time.sleep(0.05)
        return super().reset(seed=seed, options=options)
