"""Several environments of one process, stepped in turn and reset by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actors.config import EnvConfig
from actors.envs.make import make_env
from actors.envs.spec import flatten_observation, to_env_action
from transport.experience import ExperienceSpec

if TYPE_CHECKING:
    import gymnasium


class Episode(NamedTuple):
    """An episode that has just ended. `score` is the workload's own figure, total_reward where it has none."""

    env: int
    total_reward: float
    length: int
    score: float
    success: bool | None  # None: the environment does not say


class VectorStep(NamedTuple):
    """What one step of K environments gave. Every array is new: the caller may keep it for as long as it likes.

    observation[name]: [K, *shape] at rest dtype, to act on next: the new episode's first one where an episode ended.
    reward: [K] float32. terminated, truncated: [K] bool, never both. final_observation[name]: [K, *shape], the last
    observation of the episode; its rows mean something only where one ended.
    """

    observation: dict[str, np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_observation: dict[str, np.ndarray]
    episodes: list[Episode]


class VectorEnv:
    """K environments behind one step, with observations as the spec's fields rest."""

    def __init__(
        self,
        config: EnvConfig,
        spec: ExperienceSpec,
        count: int,
        seeds: Sequence[int],
        random_starts: bool = False,
        make: Callable[[EnvConfig], gymnasium.Env] = make_env,
    ) -> None:
        """Makes `count` environments; environment k takes seeds[k] at its first reset. Raises EnvError.

        `random_starts`: an environment that starts the same way every time (it has `max_noops`) idles for up to that many
        frames first, by a generator of its own; the others are random enough.
        """
        if len(seeds) != count:
            raise ValueError(f"{count} environments need {count} seeds, not {len(seeds)}")
        self.count = count
        self._fields = spec.fields
        self._seeds: list[int | None] = [int(seed) for seed in seeds]
        self._envs = [make(config) for _ in range(count)]
        self._observation_space = self._envs[0].observation_space
        self._action_space = self._envs[0].action_space
        self._start = np.random.default_rng(list(seeds)) if random_starts else None
        self._total_reward = np.zeros(count, np.float64)
        self._length = np.zeros(count, np.int64)

    def reset(self) -> dict[str, np.ndarray]:
        """Starts an episode everywhere. Gives the observations, [K, *shape] by field name."""
        observation = self._empty()
        for k in range(self.count):
            self._reset_one(k, observation)
        return observation

    def reseed(self, seeds: Sequence[int]) -> None:
        """Environment k takes seeds[k] when its next episode starts; the one under way goes on."""
        self._seeds = [int(seed) for seed in seeds]

    def step(self, actions: np.ndarray) -> VectorStep:
        """Steps every environment once; actions [K] of indices or [K, A] of floats. Resets those that ended."""
        observation, final = self._empty(), None
        reward = np.empty(self.count, np.float32)
        terminated, truncated = np.zeros(self.count, bool), np.zeros(self.count, bool)
        episodes: list[Episode] = []
        for k, env in enumerate(self._envs):
            seen, gain, terminal, cut, info = env.step(to_env_action(self._action_space, actions[k]))
            self._write(k, seen, observation)
            reward[k], terminated[k], truncated[k] = gain, terminal, bool(cut) and not terminal
            self._total_reward[k] += float(gain)
            self._length[k] += 1
            if terminal or cut:
                episodes.append(self._episode(k, info))
                final = final or self._empty()
                for name, rows in observation.items():
                    final[name][k] = rows[k]
                self._reset_one(k, observation)
        return VectorStep(observation, reward, terminated, truncated, final or observation, episodes)

    def close(self) -> None:
        """Closes every environment."""
        for env in self._envs:
            env.close()

    def _reset_one(self, k: int, observation: dict[str, np.ndarray]) -> None:
        """Starts an episode of environment k and writes its first observation into row k."""
        seed, self._seeds[k] = self._seeds[k], None
        options = None
        if self._start is not None and (most := getattr(self._envs[k].unwrapped, "max_noops", 0)):
            options = {"noops": int(self._start.integers(most + 1))}
        seen, _ = self._envs[k].reset(seed=seed, options=options)
        self._write(k, seen, observation)
        self._total_reward[k] = 0.0
        self._length[k] = 0

    def _write(self, k: int, seen: Any, observation: dict[str, np.ndarray]) -> None:
        values = flatten_observation(self._observation_space, seen)
        for field in self._fields:
            observation[field.name][k] = field.encode(values[field.name])

    def _empty(self) -> dict[str, np.ndarray]:
        return {field.name: np.empty((self.count, *field.shape), np.dtype(field.dtype)) for field in self._fields}

    def _episode(self, k: int, info: dict[str, Any]) -> Episode:
        total = float(self._total_reward[k])
        success = info.get("is_success")
        score = float(info.get("score", total))
        return Episode(k, total, int(self._length[k]), score, None if success is None else bool(success))
