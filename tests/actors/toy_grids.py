"""Environments that work, and are often a mistake."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Codes(gymnasium.Env):
    """An endless episode in a grid of codes, which is declared as an image."""

    action_space = spaces.Discrete(3)

    def __init__(self, greatest: int = 10, bound: int = 255) -> None:
        self.observation_space = spaces.Box(0, bound, (7, 7, 3), np.uint8)
        self._seen = np.full((7, 7, 3), greatest, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen, {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self._seen, 0.0, False, False, {}


def limited() -> gymnasium.Env:
    return gymnasium.wrappers.ClipReward(gymnasium.wrappers.TimeLimit(Codes(greatest=200), 5_000), 0, 1)
