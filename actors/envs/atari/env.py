"""Atari 2600 games (ale-py) with the preprocessing that is usual for deep Q-networks.

The games are `ALE/*-v5` as Gymnasium registers them, with sticky actions (0.25) and the minimal action set. The preprocessing
follows Machado et al. 2018 (arXiv:1709.06009, section 5) and Mnih et al. 2015 (doi:10.1038/nature14236, Methods): a step is
`skip` frames, its observation the pixel-wise maximum of the last two, in grey, 84x84; an episode begins with 1 to 30 idle
frames. Losing a life does not end an episode; 108,000 frames truncate it.
Rewards are the game's points, so that a return is the score. The algorithm may clip them (algorithm.clip_rewards).
"""

from __future__ import annotations

from typing import Any

import cv2
import gymnasium
from gymnasium.wrappers import AtariPreprocessing, TimeLimit

SIZE = 84


class AtariEnv(AtariPreprocessing):
    """One game. Observation: [84, 84] uint8, one grey frame. Reward: points."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Repeats the action for `skip` frames. Unlike Gymnasium's wrapper, renders only the last two frames."""
        game, ale = self.env.unwrapped, self.ale
        press = game._action_set[action]  # type: ignore[attr-defined]
        reward, last = 0.0, self.frame_skip - 1
        for frame in range(self.frame_skip):
            reward += ale.act(press, 1.0)
            if ale.game_over(with_truncation=True):
                break
            if frame >= last - 1:
                ale.getScreenGrayscale(self.obs_buffer[last - frame])
        self.game_over = terminated = ale.game_over(with_truncation=False)
        return self._get_obs(), float(reward), terminated, ale.game_truncated(), {"lives": ale.lives()}


def make_atari(env_id: str, skip: int, max_episode_steps: int, **options: Any) -> gymnasium.Env:
    """Makes `ALE/NAME-v5`; `options` are those of gymnasium.make. Raises ImportError, gymnasium.error.Error."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for each environment
    gymnasium.register_envs(ale_py)
    cv2.setNumThreads(1)  # a frame is too small for several threads, and other actors use the other cores
    game = gymnasium.make(env_id, frameskip=1, obs_type="grayscale", **options)
    env: gymnasium.Env = AtariEnv(game, frame_skip=skip, screen_size=SIZE)
    return TimeLimit(env, max_episode_steps) if max_episode_steps else env
