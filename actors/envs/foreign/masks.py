"""A wrapper for environments with a mask in `info`, or with a method `action_masks` as sb3-contrib has it:
`--env.wrappers actors.envs.foreign.masks:MaskFromInfo`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from actors.errors import EnvError
from transport.experience import ACTION_MASK

METHOD = "action_masks"


class MaskFromInfo(gymnasium.Wrapper):
    """Puts `info["action_mask"]`, otherwise what `action_masks()` gives, into the observation: as one more entry of a Dict, or
    beside an entry `observation`."""

    def __init__(self, env: gymnasium.Env) -> None:
        """Raises EnvError where the actions are not Discrete."""
        super().__init__(env)
        if not isinstance(env.action_space, spaces.Discrete):
            raise EnvError(f"MaskFromInfo: a mask is of Discrete actions, not of {type(env.action_space).__name__}")
        space = env.observation_space
        self._entries = isinstance(space, spaces.Dict)
        self._none = np.zeros(int(env.action_space.n), np.int8)
        parts = space.spaces if isinstance(space, spaces.Dict) else {"observation": space}
        self.observation_space = spaces.Dict({**parts, ACTION_MASK: spaces.MultiBinary(len(self._none))})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        seen, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(seen, self._read(info)), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, info = self.env.step(action)
        # Of a truncated episode the value of the last observation is estimated, over the actions that it allows.
        mask = self._none if terminated else self._read(info, truncated)
        return self._with_mask(seen, mask), reward, terminated, truncated, info

    def _read(self, info: dict[str, Any], truncated: bool = False) -> np.ndarray:
        if ACTION_MASK in info:
            return np.asarray(info[ACTION_MASK], np.int8)
        if not self.env.has_wrapper_attr(METHOD):
            if truncated:
                return self._none
            raise EnvError(f"MaskFromInfo: the environment's info has no {ACTION_MASK}, and it has no method {METHOD}")
        return np.asarray(self.env.get_wrapper_attr(METHOD)(), np.int8)

    def _with_mask(self, seen: Any, mask: np.ndarray) -> dict[str, Any]:
        return {**(seen if self._entries else {"observation": seen}), ACTION_MASK: mask}
