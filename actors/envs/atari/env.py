"""Atari 2600 games (ale-py) with the preprocessing that is usual for deep Q-networks.

The games are `ALE/*-v5` as Gymnasium registers them, with sticky actions (0.25) and the minimal action set. The preprocessing
follows Machado et al. 2018 (arXiv:1709.06009, section 5) and Mnih et al. 2015 (doi:10.1038/nature14236, Methods): a step is
`skip` frames, its observation the pixel-wise maximum of the last two, in grey, by default 84x84; an episode begins with 1 to 30
idle frames. Losing a life does not end an episode; 108,000 frames truncate it.
Rewards are the game's points, so that a return is the score. The algorithm may clip them (algorithm.clip_rewards).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cv2
import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.wrappers import AtariPreprocessing, TimeLimit

from actors.envs.foreign.batched.vector import VectorSimulators

MOST_IDLE = 30  # frames at the beginning of an episode
SETTLED_FRAMES, WATCHED_FRAMES = 30, 120  # after a reset; and how long a game stands still that waits for FIRE


class AtariEnv(AtariPreprocessing):
    """One game. Observation: [size, size] uint8, one grey frame. Reward: points."""

    def __init__(self, game: gymnasium.Env, skip: int, fire: bool, size: int) -> None:
        """`fire`: press FIRE after a reset and after a lost life."""
        super().__init__(game, noop_max=MOST_IDLE, frame_skip=skip, screen_size=size)
        meanings = game.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
        self._fire = meanings.index("FIRE") if fire else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        first = super().reset(seed=seed, options=options)
        if self._fire is None:
            return first
        observation, _, _, _, info = self.step(self._fire)
        return observation, first[1] | info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Repeats the action for `skip` frames, and then FIRE where it is due. Unlike Gymnasium's wrapper, renders only the last
        two frames."""
        ale = self.ale
        reward = self._press(action)
        if self._fire is not None and 0 < ale.lives() < self.lives and not ale.game_over(with_truncation=True):
            reward += self._press(self._fire)
        self.lives = ale.lives()
        self.game_over = terminated = ale.game_over(with_truncation=False)
        return self._get_obs(), float(reward), terminated, ale.game_truncated(), {"lives": self.lives}

    def _press(self, action: Any) -> float:
        """The reward of `skip` frames with this action."""
        game, ale = self.env.unwrapped, self.ale
        press = game._action_set[action]  # type: ignore[attr-defined]
        reward, last = 0.0, self.frame_skip - 1
        for frame in range(self.frame_skip):
            reward += ale.act(press, 1.0)
            if ale.game_over(with_truncation=True):
                break
            if frame >= last - 1:
                ale.getScreenGrayscale(self.obs_buffer[last - frame])
        return reward


def make_atari(env_id: str, skip: int, fire: bool, size: int, max_episode_steps: int, **options: Any) -> gymnasium.Env:
    """Makes `ALE/NAME-v5`; `options` are those of gymnasium.make. `fire`: press FIRE if the game waits for it.

    Raises ImportError, gymnasium.error.Error.
    """
    _register()
    cv2.setNumThreads(1)  # a frame is too small for several threads, and other actors use the other cores
    game = gymnasium.make(env_id, frameskip=1, obs_type="grayscale", **options)
    env: gymnasium.Env = AtariEnv(game, skip, fire and waits_for_fire(env_id), size)
    return TimeLimit(env, max_episode_steps) if max_episode_steps else env


@cache
def waits_for_fire(env_id: str) -> bool:
    """True if lives of a game begin with FIRE: without it nothing moves on the screen for two seconds, and then something does.

    Games without lives are left to the agent: where FIRE throws or shoots, pressing it takes a turn. Raises ImportError,
    gymnasium.error.Error.
    """
    _register()
    game: Any = gymnasium.make(env_id, frameskip=1, repeat_action_probability=0.0, disable_env_checker=True).unwrapped
    try:
        game.reset(seed=0)
        if "FIRE" not in game.get_action_meanings() or game.ale.lives() < 2:
            return False
        _moves(game, "NOOP", SETTLED_FRAMES)
        return not _moves(game, "NOOP", WATCHED_FRAMES) and _moves(game, "FIRE", WATCHED_FRAMES)
    finally:
        game.close()


def _moves(game: Any, button: str, frames: int) -> bool:
    """True if anything moves on the screen within `frames` frames while a button is held."""
    held, before = game._action_set[game.get_action_meanings().index(button)], game.ale.getScreenGrayscale()
    for _ in range(frames):
        game.ale.act(held)
        if not np.array_equal(game.ale.getScreenGrayscale(), before):
            return True
    return False


class OneFrame(VectorWrapper):
    """A batch of games whose observations are one frame [K, size, size] each, not a stack of one."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation[:, 0], info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, *rest = self.env.step(actions)
        return observation[:, 0], *rest  # type: ignore[return-value]


def make_batch(env: gymnasium.Env, env_id: str, skip: int, size: int, count: int) -> VectorSimulators:
    """`count` games like `env`, which make_atari has made without FIRE, stepped by one call in one thread."""
    batch: VectorEnv = gymnasium.make_vec(
        env_id,
        count,
        vectorization_mode="vector_entry_point",
        num_threads=1,
        stack_num=1,
        frameskip=skip,
        noop_max=MOST_IDLE,
        img_height=size,
        img_width=size,
        reward_clipping=False,
        use_fire_reset=False,
    )
    return VectorSimulators(OneFrame(batch), env.observation_space, env.action_space, _steps_limit(env))


def _steps_limit(env: gymnasium.Env) -> int:
    """The limit of steps that make_atari has put around a game; 0: none."""
    return env._max_episode_steps if isinstance(env, TimeLimit) else 0


def _register() -> None:
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for each environment
    gymnasium.register_envs(ale_py)
