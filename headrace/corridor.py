"""A task that a policy without memory cannot solve: `headrace up --env headrace.corridor:Corridor`.

The first observation shows a sign, one of several. The agent then walks through a corridor, in which all observations are alike.
At its end are as many doors as there are signs, and the agent must choose the door that belongs to the sign.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env):
    """Each step moves the agent one place on. Only the action at the end matters: the reward is +1 for the right door, -1 for
    another.

    The observation [cues + 1] holds the sign, one-hot, at the first place only. Its last entry is 1 at the end of the corridor.
    All places between have the same observation. After Bakker 2001 (Reinforcement Learning with Long Short-Term Memory, NIPS 14),
    whose T-maze has two signs.
    """

    def __init__(self, length: int = 30, cues: int = 2) -> None:
        """`length`: steps from the sign to the doors. `cues`: number of signs, and of doors. Raises ValueError."""
        if length < 1 or cues < 2:
            raise ValueError(f"a corridor needs a length of at least 1 and at least 2 cues, not {length} and {cues}")
        self.length, self.cues = length, cues
        self.observation_space = spaces.Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = spaces.Discrete(cues)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._cue = 0, int(self.np_random.integers(self.cues))
        observation = self._observation()
        observation[self._cue] = 1.0
        return observation, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        ended, right = self._place == self.length, int(action) == self._cue
        self._place += 1
        reward = (1.0 if right else -1.0) if ended else 0.0
        return self._observation(), reward, ended, False, {"is_success": ended and right}

    def _observation(self) -> np.ndarray:
        observation = np.zeros(self.cues + 1, np.float32)
        observation[-1] = self._place == self.length
        return observation
