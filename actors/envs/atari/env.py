"""Atari 2600 games (ale-py) as deep Q-networks usually play them.

`ALE/*-v5` as Gymnasium registers it, sticky actions (0.25) and the minimal action set included, but for what Machado et al.
2018 (arXiv:1709.06009, section 5) and Mnih et al. 2015 (doi:10.1038/nature14236, Methods) put between game and agent: a step is
`skip` frames, its picture the brighter of each pixel of the last two, in grey, 84x84; an episode begins with 1 to 30 idle
frames. The loss of a life does not end an episode; 108,000 frames truncate it.
Rewards are the game's own points, and a return is the score: whoever learns from them clips them (algorithm.clip_rewards).
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
        """Holds the action for `skip` frames. As Gymnasium's wrapper, but no picture is drawn that nobody sees."""
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
    """Makes `ALE/NAME-v5`; `options` are those of gymnasium.make. Raises ImportError without ale-py, gymnasium.error.Error."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no greeting per environment
    gymnasium.register_envs(ale_py)
    cv2.setNumThreads(1)  # a frame is too small to share out, and the cores belong to other actors
    game = gymnasium.make(env_id, frameskip=1, obs_type="grayscale", **options)
    env: gymnasium.Env = AtariEnv(game, frame_skip=skip, screen_size=SIZE)
    return TimeLimit(env, max_episode_steps) if max_episode_steps else env
