"""An environment whose observations say where they come from, so that every row of every batch can be checked.

The identity of an environment is the seed of its first reset. Episode lengths and endings follow from (identity, episode),
rewards from (identity, episode, step, action), so a checker needs no record of what happened.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

ACTIONS = 5
SIDE = 12
MOST_IDENTITIES = 1 << 16  # an observation has two bytes for one
REWARD_BASE = 512  # a reward is action * REWARD_BASE + something smaller, all exact in float32


def mix(*numbers: int) -> int:
    """A number that looks random but follows from its arguments."""
    value = 0x9E3779B9
    for number in numbers:
        value = ((value ^ number) * 0x85EBCA6B + 0xC2B2AE35) & 0xFFFFFFFF
        value ^= value >> 15
    return value


def episode_length(identity: int, episode: int) -> int:
    """1 to 40 steps, often short ones, so that stacks and n-step windows meet ends all the time."""
    return 1 + mix(identity, episode, 1) % (6 if mix(identity, episode, 2) % 2 else 40)


def ends_by_termination(identity: int, episode: int) -> bool:
    """Otherwise the episode is truncated."""
    return mix(identity, episode, 3) % 2 == 0


def reward_of(identity: int, episode: int, step: int, action: int) -> float:
    """The reward for `action` on the observation of `step`."""
    return float(action * REWARD_BASE + mix(identity, episode, step, 4) % REWARD_BASE)


def code(identity: int, episode: int, step: int, last_action: int) -> np.ndarray:
    """Eight bytes that name an observation; last_action is ACTIONS at an episode's start."""
    numbers = [identity >> 8, identity & 255, episode >> 8, episode & 255, step >> 8, step & 255, last_action]
    return np.array([*numbers, mix(*numbers) & 255], np.uint8)


class CountingEnv(gymnasium.Env):
    """Image: the code repeated over 12x12 pixels. Vector: the code as eight floats."""

    def __init__(self, image: bool, step_seconds: float = 0.0) -> None:
        """No simulator behind it, but a step may take as long as one's."""
        self.image, self.step_seconds = image, step_seconds
        if image:
            self.observation_space = gymnasium.spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
        else:
            self.observation_space = gymnasium.spaces.Box(0, 255, (8,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(ACTIONS)
        self.identity, self.episode, self.count = 0, -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """The first seed names the environment; those that an actor draws later are greater, and name nothing."""
        if seed is not None and seed < MOST_IDENTITIES:
            self.identity, self.episode = seed, -1
        self.episode += 1
        self.count = 0
        return self._observe(ACTIONS), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Counts."""
        time.sleep(self.step_seconds)
        reward = reward_of(self.identity, self.episode, self.count, int(action))
        self.count += 1
        over = self.count >= episode_length(self.identity, self.episode)
        terminates = ends_by_termination(self.identity, self.episode)
        return self._observe(int(action)), reward, over and terminates, over and not terminates, {}

    def _observe(self, last_action: int) -> np.ndarray:
        name = code(self.identity, self.episode, self.count, last_action)
        if self.image:
            return np.resize(name, (SIDE, SIDE))
        return name.astype(np.float32)


def image() -> CountingEnv:
    """A factory, as `--env tests.flow.counting_env:image` names it."""
    return CountingEnv(image=True)


def vector() -> CountingEnv:
    """A factory, as `--env tests.flow.counting_env:vector` names it."""
    return CountingEnv(image=False)


def slow_vector() -> CountingEnv:
    """A factory of environments whose every item can be checked in the time that a test has."""
    return CountingEnv(image=False, step_seconds=0.03)
