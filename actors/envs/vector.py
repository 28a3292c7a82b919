"""K environments of one process, stepped by one call. VectorEnv resets those whose episode ended, in the same call."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np

from actors.config import EnvConfig, EvaluatorConfig
from actors.envs.base import EnvPlace, Simulators
from actors.envs.foreign.in_turn import EnvsInTurn, Renewal, make_further
from actors.envs.foreign.keys import Keys, keys_of
from actors.envs.make import make_env, open_family
from actors.episodes import Episode, finite_score, succeeded
from actors.errors import EnvError
from actors.hindsight import ComputeReward
from transport.experience import ExperienceSpec

SEEDS = 2**31  # an environment gets a smaller seed than this: np.random.seed, and simulators in C, refuse greater ones


class Make(Protocol):
    """The signature of make_env."""

    def __call__(self, config: EnvConfig, *, evaluation: bool) -> gymnasium.Env: ...


class VectorStep(NamedTuple):
    """The result of one step of K environments. Every array is new: the caller may keep it.

    observation[name]: [K, *shape] at rest dtype, to act on next; where an episode ended, the first of the new episode.
    reward: [K] float32. terminated, truncated: [K] bool, never both. final_observation[name]: [K, *shape], the last
    observation of the episode; only valid in rows where an episode ended. episodes: those that ended, but for first ones that
    were cut (see VectorEnv).
    """

    observation: dict[str, np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_observation: dict[str, np.ndarray]
    episodes: list[Episode]


class VectorEnv:
    """K environments that one call steps, with observations at rest dtype.

    They are stepped in turn where their family has no batch of them, and where they have wrappers, which must see each step. Of
    these, if not in an evaluation, the first episode ends after a random part of the time limit at the latest, and is not
    reported then. Episodes that always last until the limit would stay in step with each other: all that is learned from at one
    moment would be of the same part of an episode.
    """

    def __init__(
        self,
        config: EnvConfig,
        spec: ExperienceSpec,
        count: int,
        seeds: Sequence[int],
        evaluation: EvaluatorConfig | None = None,
        make: Make | None = None,
        beat: Callable[[], None] = lambda: None,
        raised: Callable[[str], None] | None = None,
        worker: int = 0,
    ) -> None:
        """Makes `count` environments; environment k takes seeds[k] at its first reset, and in training others that follow from
        it later. Raises EnvError.

        In an evaluation, episodes are also truncated after its max_episode_steps, and after max_idle_steps in a row without
        reward; the family's Setup.evaluation is used. `worker`: the worker_index of their EnvPlace.

        Of environments that are stepped in turn: `beat` is called after each, because slow ones together take longer than a
        process may be silent. One that raises or leaves Gymnasium's API is made anew, and its episode is truncated as in `step`;
        `raised` is called with a line that says so. None: that raises.
        """
        if len(seeds) != count:
            raise ValueError(f"{count} environments need {count} seeds, not {len(seeds)}")
        self.count = count
        self.broken = 0  # episodes truncated because an observation or reward was not finite, or the environment failed
        self.unknown_info: set[str] = set()  # keys of info without a number at the end of an episode
        self.seeded: list[tuple[int, int, int]] = []  # of the last reset or step: environment, seed, level (-1: there are none)
        self._info_keywords = config.info_keywords
        self._evaluation = evaluation
        self._seeds: list[int | None]  # of the next reset
        self._unseeded = [0] * count  # steps since the last seed, in episodes that have ended
        self._level = 0
        self.reseed(seeds)
        self._family = family = open_family(config)
        self.success_name = family.success_name
        self.reports_success = family.reports_success  # or an episode has
        measures = evaluation is not None
        places = [EnvPlace(worker, k, int(seed) % SEEDS) for k, seed in enumerate(seeds)]
        makers: list[Callable[[], gymnasium.Env]] = [
            partial(make, config, evaluation=measures) if make else partial(make_env, config, evaluation=measures, place=place)
            for place in places
        ]
        self.example = env = makers[0]()  # read its spaces; do not step it
        bare = env.unwrapped is env or (make is None and not config.wrappers)
        batched = family.simulators(env, count) if bare else None
        self._fields = spec.fields
        self._first_limit = np.full(count, np.inf)  # of an environment's first episode
        self._simulators: Simulators = self._in_turn(makers, seeds, beat, raised) if batched is None else batched
        self._floats = [field.name for field in spec.fields if field.dtype.startswith("<f")]
        self._total_reward = np.zeros(count, np.float64)
        self._length, self._idle = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._last: dict[str, np.ndarray] = {}  # the observations to act on

    def _in_turn(
        self,
        makers: Sequence[Callable[[], gymnasium.Env]],
        seeds: Sequence[int],
        beat: Callable[[], None],
        raised: Callable[[str], None] | None,
    ) -> EnvsInTurn:
        """Makes the environments after the first, and limits their first episodes."""
        envs = make_further(self.example, makers[1:])
        again = None if raised is None else Renewal(makers, raised)
        limit = self.example.spec.max_episode_steps if self.example.spec and not self._evaluation else None
        if limit:
            self._first_limit[:] = np.random.default_rng(list(seeds)).integers(1, limit + 1, self.count)
        return EnvsInTurn(envs, self._fields, beat=beat, info_keywords=self._info_keywords, renewal=again)

    def reset(self) -> dict[str, np.ndarray]:
        """Starts an episode in all environments. Gives observations [K, *shape] by name. Raises EnvError, as `step` does."""
        self._last = self._start(np.arange(self.count))
        return self._last

    def reseed(self, seeds: Sequence[int]) -> None:
        """Environment k takes seeds[k] when its next episode starts; its current episode goes on."""
        self._seeds = [int(seed) % SEEDS for seed in seeds]
        self._later = [random.Random(seed) for seed in self._seeds]  # seeds after that

    def step(self, actions: np.ndarray) -> VectorStep:
        """Steps all environments by actions [K] of indices or [K, A] of floats, and resets those whose episode ended.

        If an observation or reward is not finite, as physics simulators sometimes give, or if an environment raises, the episode
        is truncated at the previous observation, with a reward of 0, and counted in `broken`.
        """
        values, reward, terminated, truncated, score, success, group, level, info = self._simulators.step(actions)
        observation = self._encode(values)
        broken = self._not_finite(observation, reward)
        if broken.any():
            self.broken += int(broken.sum())
            for name, rows in observation.items():
                rows[broken] = self._last[name][broken]
            reward[broken] = 0.0
            for k in np.flatnonzero(broken).tolist():  # one that has failed is made anew, without the generator that it had
                self._unseeded[k] = self._family.seed_steps
            terminated &= ~broken
            truncated |= broken
        self._total_reward += reward
        self._length += 1
        idle = self._cut_off(reward, terminated, truncated, self._evaluation) if self._evaluation else None
        staggered = ~terminated & ~truncated & (self._length >= self._first_limit)
        truncated |= staggered
        ended = np.flatnonzero(terminated | truncated)
        self._last, self.seeded = observation, []
        if not len(ended):
            return VectorStep(observation, reward, terminated, truncated, observation, [])
        groups = [group[k] if len(group) else "" for k in ended.tolist()]
        levels = [int(level[k]) if len(level) else -1 for k in ended.tolist()]
        episodes = [
            self._episode(k, score[k], success[k])._replace(
                group=groups[i],
                level=levels[i],
                broken=bool(broken[k]),
                idle=idle is not None and bool(idle[k]),
                info=self._info(k, info),
            )
            for i, k in enumerate(ended.tolist())
            if not staggered[k]
        ]
        self._first_limit[ended] = np.inf
        final = {name: np.empty_like(rows) for name, rows in observation.items()}
        for name, rows in self._start(ended).items():
            final[name][ended] = observation[name][ended]
            observation[name][ended] = rows
        return VectorStep(observation, reward, terminated, truncated, final, episodes)

    @property
    def action_names(self) -> list[str]:
        """Names of the actions; empty if the environment gives none."""
        return self._family.action_names(self.example)

    def keys(self) -> Keys:
        """The keys by which a person can steer one. Raises EnvError."""
        return keys_of(self.example, self._family)

    @property
    def speed(self) -> float:
        """Steps per second at which people watch it; 0 if the environment names no such speed."""
        return float((self.example.metadata or {}).get("render_fps") or 0) / self._family.frames_per_step

    def picture(self) -> np.ndarray | None:
        """[H, W, 3] RGB uint8 of the first environment; None where it draws none."""
        return self._simulators.picture()

    def progress(self, k: int) -> tuple[int, float]:
        """Steps and sum of rewards of the episode of environment k so far."""
        return int(self._length[k]), float(self._total_reward[k])

    @property
    def compute_reward(self) -> ComputeReward | None:
        """The environments' compute_reward; None if they have none."""
        return self._family.compute_reward(self.example)

    @property
    def levels(self) -> int:
        """Number of levels of the curriculum; 0: there is none."""
        return self._simulators.levels

    def set_level(self, level: int) -> None:
        """Sets the level of the episodes that start from now on. Raises ValueError for a level that does not exist."""
        if not 0 <= level < self.levels:
            raise ValueError(f"level {level} of {self.levels}")
        self._simulators.set_level(level)
        if level != self._level:
            self._level, self._unseeded = level, [self._family.seed_steps] * self.count

    def close(self) -> None:
        """Closes every environment."""
        self._simulators.close()

    def _cut_off(self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, limits: EvaluatorConfig) -> np.ndarray:
        """Truncates the episodes that are too long for an evaluation. Gives [K] bool: those that gave no reward for too long."""
        self._idle = np.where(reward == 0, self._idle + 1, 0)
        truncated |= ~terminated & (self._length >= limits.max_episode_steps)
        idle: np.ndarray = ~terminated & ~truncated & (self._idle >= (limits.max_idle_steps or np.inf))
        truncated |= idle
        return idle

    def _start(self, where: np.ndarray) -> dict[str, np.ndarray]:
        """Starts an episode in environments `where` [M]. Gives the observations [M, *shape] by field name."""
        seeds = self._take_seeds(where.tolist())
        self._total_reward[where] = 0.0
        self._length[where] = self._idle[where] = 0
        observation = self._encode(self._simulators.reset(where, seeds))
        if self._not_finite(observation, np.zeros(len(where))).any():
            raise EnvError("reset gave an observation that is not finite")
        return observation

    def _take_seeds(self, where: list[int]) -> list[int | None]:
        """The seeds by which environments `where` begin the next episode."""
        seeds, self.seeded = [self._seeds[k] for k in where], []
        if not self._simulators.takes_seeds:
            self._seeds = [None if k in where else seed for k, seed in enumerate(self._seeds)]
            return seeds
        level = self._level if self.levels else -1
        for i, k in enumerate(where):
            self._unseeded[k] += int(self._length[k])
            seed, self._seeds[k] = seeds[i], None
            if seed is None and self._unseeded[k] >= self._family.seed_steps and self._evaluation is None:
                seeds[i] = seed = self._later[k].randrange(SEEDS)
            if seed is not None:
                self._unseeded[k] = 0
                self.seeded.append((k, seed, level))
        return seeds

    def _encode(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """At rest dtype; what has it already is not copied."""
        return {field.name: field.encode(values[field.name]) for field in self._fields}

    def _not_finite(self, observation: dict[str, np.ndarray], reward: np.ndarray) -> np.ndarray:
        """[M] bool: rows with a NaN or an infinity."""
        broken = ~np.isfinite(reward)
        for name in self._floats:
            if not (fine := np.isfinite(observation[name])).all():
                broken = broken | ~fine.reshape(len(broken), -1).all(1)
        return broken

    def _episode(self, k: int, score: Any, success: Any) -> Episode:
        total = float(self._total_reward[k])
        self.reports_success |= success is not None
        return Episode(k, total, int(self._length[k]), finite_score(score, total), succeeded(success))

    def _info(self, k: int, info: Mapping[str, Any]) -> dict[str, float]:
        """The numbers under env.info_keywords of environment k."""
        found = {}
        for key in self._info_keywords:
            values = info.get(key)
            value = math.nan if values is None else finite_score(values[k], math.nan)
            if math.isnan(value):
                self.unknown_info.add(key)
            else:
                found[key] = value
        return found
