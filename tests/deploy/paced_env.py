"""An environment whose steps take a given time: `sleepy` waits, `busy` computes, `quick` does neither."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

SECONDS = 0.02


class Paced(gymnasium.Env):
    """Four floats, three actions, episodes of 50 steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, pace: str) -> None:
        self.pace = pace
        self.now = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.now += 1
        if self.pace == "sleepy":
            time.sleep(SECONDS)
        until = time.thread_time() + SECONDS
        while self.pace == "busy" and time.thread_time() < until:
            pass
        return np.full(4, self.now / 50, np.float32), 1.0, self.now == 50, False, {}


def sleepy() -> Paced:
    return Paced("sleepy")


def busy() -> Paced:
    return Paced("busy")


def quick() -> Paced:
    return Paced("quick")
