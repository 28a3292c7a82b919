"""K simulators behind one step: what a workload that steps many at once offers, and the same for any other environment.

A workload of the first kind has a method `simulators(count)` on its Gymnasium class (snake.py does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np

from actors.envs.checks import read_observation
from actors.envs.spec import to_env_action
from transport.experience import Column


class Outcome(NamedTuple):
    """What one step of K simulators gave; all arrays are new.

    observation[name]: [K, *shape] at rest dtype, the last one where an episode ended. reward: [K] float32. terminated,
    truncated: [K] bool, never both. score, success: [K] of whatever the workload says, None where it says nothing; both are
    read where an episode ended. So are group, the name of what an episode is reported with ("" for none), and level, that of the
    curriculum which it was at (-1 for none); either is empty where a workload has no such thing.
    """

    observation: dict[str, np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    score: Sequence[Any] | np.ndarray
    success: Sequence[Any] | np.ndarray
    group: Sequence[str] = ()
    level: Sequence[int] | np.ndarray = ()


class Simulators(Protocol):
    """K simulators that nobody but the caller resets."""

    def reset(self, where: np.ndarray, seeds: Sequence[int | None]) -> dict[str, np.ndarray]:
        """Starts an episode in simulators `where` [M]; None goes on with a simulator's own stream. Gives [M, *shape] by name."""

    def step(self, actions: np.ndarray) -> Outcome:
        """Steps all by actions [K] of indices or [K, A] of floats."""

    def close(self) -> None:
        """Frees what is held."""


class Separate:
    """Gymnasium environments, stepped in turn."""

    def __init__(
        self, envs: list[gymnasium.Env], fields: Sequence[Column], start: np.random.Generator | None, beat: Callable[[], None]
    ) -> None:
        """Takes environments of one kind, and the fields that their observations become. `beat` is called after each one's step.

        `start` draws how long an environment idles first that starts the same way every time (one with `max_noops`).
        """
        self._envs, self._fields, self._start, self._beat = envs, fields, start, beat
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
            env, more = self._envs[k], {}
            if self._start is not None and (most := getattr(env.unwrapped, "max_noops", 0)):
                more = {"options": {"noops": int(self._start.integers(most + 1))}}
            seen, _ = env.reset(seed=seed, **more)
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
            told = info.get("group", ""), info.get("level", -1)  # which may mean something else in somebody else's environment
            group.append(told[0] if isinstance(told[0], str) else "")
            level.append(told[1] if type(told[1]) is int else -1)
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
