"""CartPole for the rehearsals: something that can be learned and is written down all the same.

`--env tests.chaos.balance:cart_pole`. Its steps carry no numbers, but no two observations of it are equal: a step is named by
the sixteen bytes that it acts on.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

from tests.chaos import history
from tests.chaos.simulator import actor_name
from transport.experience import Chunk, ExperienceSpec

STEP_SECONDS = 0.004
FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


def names(observations: np.ndarray) -> np.ndarray:
    """Of observations [N, 4] float32: [N] int64, never negative. Two of a million are alike once in ten million runs."""
    halves = np.ascontiguousarray(observations, "<f4").view("<u8").reshape(-1, 2)
    with np.errstate(over="ignore"):
        mixed = halves[:, 0] * FIRST ^ halves[:, 1] * SECOND
        mixed ^= mixed >> np.uint64(31)
        mixed *= FIRST
    return (mixed >> np.uint64(1)).astype(np.int64)


def names_of(spec: ExperienceSpec, chunk: Chunk) -> np.ndarray:
    """The names [items] of a chunk's valid items."""
    items = slice(spec.history, spec.history + chunk.length)
    return names(chunk.columns["observation"][items][chunk.columns["valid"][items] != 0])


class Recorded(gymnasium.Wrapper):
    """Writes each step down before it is taken."""

    def reset(self, **how: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Remembers where the episode begins."""
        self._seen, info = self.env.reset(**how)
        return self._seen, info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """The observation names the step."""
        if history.current is not None:
            history.current.step_named(int(names(self._seen[None])[0]))
        self._seen, reward, terminated, truncated, info = self.env.step(action)
        return self._seen, float(reward), terminated, truncated, info


class Slow(gymnasium.Wrapper):
    """Sleeps in each step, so that hours of it can be written down."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """After the sleep."""
        time.sleep(STEP_SECONDS)
        return self.env.step(action)


def cart_pole() -> gymnasium.Env:
    return Recorded(gymnasium.make("CartPole-v1"))


def slow_cart_pole() -> gymnasium.Env:
    return Recorded(Slow(gymnasium.make("CartPole-v1")))


if actor_name():
    history.name_by(names_of)
    history.install()
