"""A combination lock of 60 steps, which chance does not open, and a recording of its opening.

    python -m benchmarks.learning.lock OUT.npz        20 episodes of a player who knows the combination, with 1 % of errors

One of four actions at each place leads on, every other back to the first place. The reward is 1 at the end and 0 before:
uniformly random actions reach it in one of 4 ** 60 attempts.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH, ACTIONS, STEPS = 60, 4, 300
COMBINATION = np.random.default_rng(60).integers(ACTIONS, size=LENGTH)
EPISODES, ERRORS = 20, 0.01


class Lock(gymnasium.Env[int, int]):
    """Observes the place, 0 to 60."""

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(LENGTH + 1)
        self.action_space = spaces.Discrete(ACTIONS)
        self._place = self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = self._steps = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._place = self._place + 1 if action == COMBINATION[self._place] else 0
        self._steps += 1
        opened = self._place == LENGTH
        return self._place, float(opened), opened, self._steps == STEPS and not opened, {"is_success": opened}


def record(path: str) -> None:
    """Writes D4RL's arrays."""
    env, random = Lock(), np.random.default_rng(0)
    rows: dict[str, list[Any]] = {key: [] for key in ("observations", "actions", "rewards", "terminals", "timeouts")}
    for _ in range(EPISODES):
        place, _ = env.reset()
        ended = False
        while not ended:
            action = int(random.integers(ACTIONS) if random.random() < ERRORS else COMBINATION[place])
            following, reward, terminated, truncated, _ = env.step(action)
            for key, value in zip(rows, (place, action, reward, terminated, truncated), strict=True):
                rows[key].append(value)
            place, ended = following, terminated or truncated
    np.savez_compressed(path, **{key: np.array(values) for key, values in rows.items()})  # type: ignore[arg-type]


if __name__ == "__main__":
    record(sys.argv[1])
