"""Several environments of one process behind one step, reset by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actors.config import EnvConfig
from actors.envs.errors import EnvError
from actors.envs.make import make_env
from actors.envs.simulators import Separate, Simulators
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
    group: str = ""  # what it is reported with, as a tier of targets
    level: int = -1  # of the curriculum that it was at; -1: the full task


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
        most_steps: int = 0,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """Makes `count` environments; environment k takes seeds[k] at its first reset. Raises EnvError.

        Episodes are truncated after `most_steps` steps (0: never), whatever the environment says. `beat` is called after the step
        of each where they are stepped in turn: slow ones take longer together than a process may be silent.

        `random_starts` is for evaluation: an environment that starts the same way every time (it has `max_noops`) idles for up
        to that many frames first, by a generator of its own; one that keeps something for evaluation (it has `evaluation()`) is
        told to use it; the others are random enough.
        """
        if len(seeds) != count:
            raise ValueError(f"{count} environments need {count} seeds, not {len(seeds)}")
        self.count = count
        self.broken = 0  # episodes cut because something in them was not finite
        self._most_steps = most_steps
        self._seeds: list[int | None] = [int(seed) for seed in seeds]
        start = np.random.default_rng(list(seeds)) if random_starts else None
        self.example = env = make(config)  # to be asked what it is; nobody but `simulators` steps it
        # A workload that steps many as one, unless a wrapper is to see each step.
        together = getattr(env, "simulators", None) if env.unwrapped is env else None
        envs = [env] if together else [env, *(make(config) for _ in range(count - 1))]
        for one in envs:
            if random_starts and (evaluation := getattr(one.unwrapped, "evaluation", None)):
                evaluation()
        self._simulators: Simulators = together(count) if together else Separate(envs, spec.fields, start, beat)
        self._floats = [field.name for field in spec.fields if field.dtype.startswith("<f")]
        self._total_reward = np.zeros(count, np.float64)
        self._length = np.zeros(count, np.int64)
        self._last: dict[str, np.ndarray] = {}  # what was last to be acted on

    def reset(self) -> dict[str, np.ndarray]:
        """Starts an episode everywhere. Gives the observations, [K, *shape] by field name. Raises EnvError, as `step` does."""
        self._last = self._start(np.arange(self.count))
        return self._last

    def reseed(self, seeds: Sequence[int]) -> None:
        """Environment k takes seeds[k] when its next episode starts; the one under way goes on."""
        self._seeds = [int(seed) for seed in seeds]

    def step(self, actions: np.ndarray) -> VectorStep:
        """Steps every environment once; actions [K] of indices or [K, A] of floats. Resets those that ended.

        Where an observation or reward is not finite, which happens to simulators of physics, the episode is truncated at the
        observation before, with a reward of 0, and counted as `broken`.
        """
        seen, reward, terminated, truncated, score, success, group, level = self._simulators.step(actions)
        broken = self._not_finite(seen, reward)
        if broken.any():
            self.broken += int(broken.sum())
            for name in self._floats:
                seen[name][broken] = self._last[name][broken]
            reward[broken] = 0.0
            truncated |= broken & ~terminated
        self._total_reward += reward
        self._length += 1
        if self._most_steps:
            truncated |= ~terminated & (self._length >= self._most_steps)
        ended = np.flatnonzero(terminated | truncated)
        self._last = seen
        if not len(ended):
            return VectorStep(seen, reward, terminated, truncated, seen, [])
        told = [(group[k] if len(group) else "", int(level[k]) if len(level) else -1) for k in ended.tolist()]
        episodes = [self._episode(k, score[k], success[k], *more) for k, more in zip(ended.tolist(), told, strict=True)]
        final = {name: np.empty_like(rows) for name, rows in seen.items()}
        for name, rows in self._start(ended).items():
            final[name][ended] = seen[name][ended]
            seen[name][ended] = rows
        return VectorStep(seen, reward, terminated, truncated, final, episodes)

    @property
    def levels(self) -> int:
        """How many levels the environments' curriculum has; 0: none."""
        return int(getattr(self._simulators, "levels", 0))

    def set_level(self, level: int) -> None:
        """The curriculum's level of episodes that start from now on. Raises ValueError for one that there is not."""
        if not 0 <= level < self.levels:
            raise ValueError(f"level {level} of {self.levels}")
        self._simulators.set_level(level)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Closes every environment."""
        self._simulators.close()

    def _start(self, where: np.ndarray) -> dict[str, np.ndarray]:
        """Starts an episode in environments `where` [M]. Gives their first observations [M, *shape] by field name."""
        seeds = [self._seeds[k] for k in where.tolist()]
        for k in where.tolist():
            self._seeds[k] = None
        self._total_reward[where] = 0.0
        self._length[where] = 0
        observation = self._simulators.reset(where, seeds)
        if self._not_finite(observation, np.zeros(len(where))).any():
            raise EnvError("reset gave an observation that is not finite")
        return observation

    def _not_finite(self, observation: dict[str, np.ndarray], reward: np.ndarray) -> np.ndarray:
        """Which rows [M] hold a NaN or an infinity."""
        broken = ~np.isfinite(reward)
        for name in self._floats:
            if not (fine := np.isfinite(observation[name])).all():
                broken = broken | ~fine.reshape(len(broken), -1).all(1)
        return broken

    def _episode(self, k: int, score: Any, success: Any, group: str, level: int) -> Episode:
        total = float(self._total_reward[k])
        # An environment of somebody else's may mean something by the same keys that is not one number or not one truth.
        own = isinstance(score, int | float | np.number) and not np.isnan(score)
        told = None if success is None else bool(np.all(success))
        return Episode(k, total, int(self._length[k]), float(score) if own else total, told, group, level)
