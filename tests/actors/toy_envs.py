"""Small environments for the tests, well behaved and otherwise."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Camera(gymnasium.Env):
    """Colour pictures [40, 48, 3] whose pixels come of the seed, the episode and the step.

    Episodes last 5 steps and terminate; every second one lasts 7 and is truncated. At step 3 of each, info says so.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (40, 48, 3), np.uint8)
        self.action_space = spaces.Discrete(3, start=5)
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.episode, self.now = self.episode + 1, 0
        self.base = int(self.np_random.integers(100))
        return self._picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        self.now += 1
        odd = self.episode % 2 == 1
        info = {"is_success": odd, "score": 10.0 * self.now}
        return self._picture(), float(action), self.now >= 5 and not odd, self.now >= 7, info

    def _picture(self) -> np.ndarray:
        return np.full((40, 48, 3), (self.base, self.episode % 256, self.now), np.uint8)


class Rover(gymnasium.Env):
    """Nested Dict observations and continuous actions; says terminated and truncated at once at its tenth step."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (40, 40), np.uint8),
                "joints": spaces.Box(-1.0, 1.0, (2, 3), np.float64),
                "goal": spaces.Dict({"kind": spaces.Discrete(3, start=1), "lamps": spaces.MultiBinary(4)}),
            }
        )
        self.action_space = spaces.Box(np.array([[-1.0], [-2.0]], np.float32), np.array([[1.0], [2.0]], np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        super().reset(seed=seed)
        self.now = 0
        self.phase = float(self.np_random.uniform())
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        self.now += 1
        return self._seen(), float(action.sum()), self.now >= 10, self.now >= 10, {}

    def _seen(self) -> dict[str, Any]:
        return {
            "camera": np.full((40, 40), self.now, np.uint8),
            "joints": np.sin(self.phase + self.now + np.arange(6.0)).reshape(2, 3),
            "goal": {"kind": np.int64(1 + self.now % 3), "lamps": np.array([1, 0, 0, 1], np.int8)},
        }


class Endless(gymnasium.Env):
    """Never ends by itself; what it gives can be bent by subclasses."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), 0.0, False, False, {}


class Chatty(Endless):
    """Prints what could be taken for a report."""

    def reset(self, **options: Any) -> Any:
        print('{"phase": "make"}\nnonsense', flush=True)
        os.write(2, b"more nonsense\n")
        return super().reset(**options)


class HangsInReset(Endless):
    def reset(self, **options: Any) -> Any:
        if os.fork() == 0:  # a helper process, as simulators have them
            time.sleep(600)
        with open(os.environ["TOY_ENV_NOTE"], "w") as note:
            note.write(str(os.getpgrp()))
        while True:
            time.sleep(1)


class RaisesInReset(Endless):
    def reset(self, **options: Any) -> Any:
        raise FileNotFoundError("no level file\nlevel.bin")


class DiesInStep(Endless):
    def step(self, action: Any) -> Any:
        os.write(2, b"assertion failed in physics\n")
        os.kill(os.getpid(), signal.SIGSEGV)


class LeavesInReset(Endless):
    def reset(self, **options: Any) -> Any:
        raise SystemExit(7)


class OldStep(Endless):
    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), 0.0, False, {}


class WrongShape(Endless):
    def step(self, action: Any) -> Any:
        return np.zeros(4, np.float32), 0.0, False, False, {}


class NotFinite(Endless):
    def step(self, action: Any) -> Any:
        return np.array([0, np.nan, 0], np.float32), 0.0, False, False, {}


class NotFiniteReward(Endless):
    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), float("inf"), False, False, {}


def not_an_env() -> object:
    return object()


gymnasium.register("HeadraceToy-v0", f"{__name__}:Endless")
