"""`--env benchmarks.pipeline.null_env:make`: an environment that costs next to nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE = 84
FRAMES = 256
EPISODE_STEPS = 1_000
ACTIONS = 7


@cache
def pictures() -> np.ndarray:
    """[FRAMES, 84, 84] uint8: flat tiles that scroll by, and a sprite: about as compressible as a platform game."""
    generator = np.random.default_rng(0)
    tiles = generator.integers(0, 256, (11, 75), np.uint8) * (generator.random((11, 75)) < 0.3)
    world = np.kron(tiles, np.ones((8, 8), np.uint8))[:SIZE]
    world += (generator.random(world.shape) < 0.004).astype(np.uint8) * 40
    frames = np.stack([world[:, 2 * index : 2 * index + SIZE] for index in range(FRAMES)])
    for frame in frames:
        y, x = generator.integers(0, SIZE - 8, 2)
        frame[y : y + 8, x : x + 8] = 255
    return frames


class NullEnv(gymnasium.Env):
    """Gives the next of a ring of pictures, whatever the action. Episodes terminate after EPISODE_STEPS."""

    observation_space = spaces.Box(0, 255, (SIZE, SIZE), np.uint8)
    action_space = spaces.Discrete(ACTIONS)

    def __init__(self, frames: np.ndarray) -> None:
        self._frames = frames
        self._place = self._left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self._place = seed % FRAMES
        self._left = EPISODE_STEPS
        return self._frames[self._place], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._place = (self._place + 1) % FRAMES
        self._left -= 1
        return self._frames[self._place], float(action == self._place % ACTIONS), self._left == 0, False, {}


def make() -> NullEnv:
    """All environments of a process share their pictures."""
    return NullEnv(pictures())
