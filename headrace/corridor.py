"""A task that nothing without memory can solve: `headrace up --env headrace.corridor:Corridor`.

The first observation shows one of some signs. The corridor that follows shows nothing, and at its end the door of that sign is to
be chosen.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env):
    """Each step leads one place on; only the action at the end counts: +1 for the right door, -1 for another.

    The observation [cues + 1] holds the sign, one-hot, on the first place alone, and a 1 in its last entry at the end. Where the
    agent is in between is not seen. After Bakker 2001 (Reinforcement Learning with Long Short-Term Memory, NIPS 14), whose
    T-maze has two signs.
    """

    def __init__(self, length: int = 30, cues: int = 2) -> None:
        """`length`: steps from the sign to the doors. `cues`: signs, and as many doors: chance opens one in `cues`."""
        if length < 1 or cues < 2:
            raise ValueError(f"a corridor needs a length of at least 1 and at least 2 cues, not {length} and {cues}")
        self.length, self.cues = length, cues
        self.observation_space = spaces.Box(0.0, 1.0, (cues + 1,), np.float32)
        self.action_space = spaces.Discrete(cues)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._cue = 0, int(self.np_random.integers(self.cues))
        seen = self._seen()
        seen[self._cue] = 1.0
        return seen, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        ended, right = self._place == self.length, int(action) == self._cue
        self._place += 1
        reward = (1.0 if right else -1.0) if ended else 0.0
        return self._seen(), reward, ended, False, {"is_success": ended and right}

    def _seen(self) -> np.ndarray:
        seen = np.zeros(self.cues + 1, np.float32)
        seen[-1] = self._place == self.length
        return seen
