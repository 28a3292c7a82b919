"""K Gymnasium environments behind one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from actors.envs.base import Outcome, Simulators
from actors.envs.checks import read_observation
from actors.envs.spec import to_env_action
from transport.experience import Column


class EnvsInTurn(Simulators):
    """Gymnasium environments, stepped one after the other.

    Their info may say: is_success; score, the environment's own figure; group and level as in Outcome.
    """

    def __init__(
        self,
        envs: list[gymnasium.Env],
        fields: Sequence[Column],
        reset_options: Callable[[], dict[str, Any] | None] = lambda: None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """`fields` are what the observations become. `beat` is called after each environment's step or reset."""
        self._envs, self._fields, self._reset_options, self._beat = envs, fields, reset_options, beat
        self._observation_space, self._action_space = envs[0].observation_space, envs[0].action_space
        # What a frame or a vector of floats must be in order to rest as it is; None for what needs a second look.
        self._at_rest: tuple[np.dtype, tuple[int, ...]] | None = None
        space, rest = envs[0].observation_space, (np.dtype(fields[0].dtype), fields[0].shape)
        if isinstance(space, gymnasium.spaces.Box) and (space.dtype, space.shape) == rest:
            self._at_rest = rest

    def reset(self, where: np.ndarray, seeds: Sequence[int | None]) -> dict[str, np.ndarray]:
        """Starts an episode in environments `where` [M]. Gives [M, *shape] by name. Raises EnvError, as `step` does."""
        observation = self._empty(len(where))
        for row, (k, seed) in enumerate(zip(where, seeds, strict=True)):
            options = self._reset_options()
            seen, _ = self._envs[k].reset(seed=seed, **({} if options is None else {"options": options}))
            self._write("reset", row, seen, observation)
            self._beat()
        return observation

    def step(self, actions: np.ndarray) -> Outcome:
        """Steps all, one after the other. Raises EnvError for an observation that the space does not describe."""
        count = len(self._envs)
        observation, reward = self._empty(count), np.empty(count, np.float32)
        terminated, truncated = np.zeros(count, bool), np.zeros(count, bool)
        score, success, group, level = [], [], [], []
        for k, env in enumerate(self._envs):
            seen, gain, terminal, cut, info = env.step(to_env_action(self._action_space, actions[k]))
            self._write("step", k, seen, observation)
            reward[k], terminated[k], truncated[k] = gain, terminal, bool(cut) and not terminal
            score.append(info.get("score"))
            success.append(info.get("is_success"))
            own_group, own_level = info.get("group", ""), info.get("level", -1)  # an environment may mean something else by these
            group.append(own_group if isinstance(own_group, str) else "")
            level.append(own_level if type(own_level) is int else -1)
            self._beat()
        return Outcome(observation, reward, terminated, truncated, score, success, group, level)

    def close(self) -> None:
        """Closes every environment."""
        for env in self._envs:
            env.close()

    def _write(self, phase: str, row: int, seen: Any, observation: dict[str, np.ndarray]) -> None:
        if type(seen) is np.ndarray and (seen.dtype, seen.shape) == self._at_rest:
            observation[self._fields[0].name][row] = seen
            return
        values = read_observation(phase, self._observation_space, self._fields, seen)
        for field in self._fields:
            observation[field.name][row] = field.encode(values[field.name])

    def _empty(self, count: int) -> dict[str, np.ndarray]:
        return {field.name: np.empty((count, *field.shape), np.dtype(field.dtype)) for field in self._fields}
