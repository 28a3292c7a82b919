"""A task that cannot be solved without memory: what is to be done is shown once, at the beginning."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Recall(gymnasium.Env):
    """The first observation shows one of `cues` signs; after `delay` steps that show nothing, the action is to be its number."""

    def __init__(self, cues: int = 3, delay: int = 3) -> None:
        self.cues, self.delay = cues, delay
        self.observation_space = spaces.Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = spaces.Discrete(cues)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue, self.step_number = int(self.np_random.integers(self.cues)), 0
        return self._seen(self.cue), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        ended, right = self.step_number == self.delay, action == self.cue
        self.step_number += 1
        return self._seen(None), float(ended and right), ended, False, {"is_success": bool(right)}

    def _seen(self, cue: int | None) -> np.ndarray:
        seen = np.zeros(self.cues + 1, np.float32)
        if cue is not None:
            seen[cue] = 1.0
        seen[-1] = self.step_number == self.delay  # now
        return seen
