"""EnvPool's environments. This file alone imports EnvPool."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from actors.envs.base import Simulators, SimulatorStep
from actors.envs.foreign.actions import to_env_actions
from actors.envs.spec import flatten_batch

ALL = "envpool.entry"  # the module that imports every environment of EnvPool, and with some of them matplotlib
SEEDS = 2**31  # EnvPool's seeds are of 32 bits, with a sign
UNLIMITED = 2**30


class PoolSimulators(Simulators):
    """K environments of EnvPool, stepped by one call in one thread.

    EnvPool resets an environment by itself in the step after the end of its episode, and that step ignores its action. `reset` is
    called before such a step, so that the next step is the first of the new episode.

    EnvPool reports every end in the last step before its limit as a truncation, even if that step terminates the episode. So its
    limit is set one step higher, and the limit is counted here.

    A pool is seeded when it is made. A `reset` of all environments with a seed each makes a new pool. A reset of some
    environments ignores their seeds: their random numbers continue from the first seed.
    """

    takes_seeds = False

    def __init__(self, env: gymnasium.Env, env_id: str, count: int) -> None:
        """`env`: Gymnasium's environment of that id; see `agrees`."""
        self._env_id, self._count = env_id, count
        self._observation_space, self._action_space = env.observation_space, env.action_space
        self._limit = (env.spec.max_episode_steps if env.spec else None) or UNLIMITED
        self._length = np.zeros(count, np.int64)
        self._pool: Any = None

    def reset(self, where: np.ndarray, seeds: Sequence[int | None]) -> dict[str, np.ndarray]:
        if self._pool is None or (len(where) == self._count and None not in seeds):
            self.close()
            drawn = np.random.SeedSequence().generate_state(len(where))
            of_32_bits = [int(drawn[k] if seed is None else seed) % SEEDS for k, seed in enumerate(seeds)]
            self._pool = self._make(of_32_bits)
        self._length[where] = 0
        observation, _ = self._pool.reset(where.astype(np.int32))
        return flatten_batch(self._observation_space, observation)

    def step(self, actions: np.ndarray) -> SimulatorStep:
        taken = to_env_actions(self._action_space, actions)
        observation, reward, terminated, truncated, info = self._pool.step(taken)
        self._length += 1
        none = [None] * self._count
        truncated = ~terminated & (truncated | (self._length >= self._limit))
        values = {}
        if (terminated | truncated).any():
            values = {name: found for name, found in info.items() if isinstance(found, np.ndarray) and len(found) == self._count}
        observed = flatten_batch(self._observation_space, observation)
        return SimulatorStep(observed, reward.astype(np.float32), terminated, truncated, none, none, info=values)

    def _make(self, seeds: list[int]) -> Any:
        limit = min(self._limit + 1, UNLIMITED)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the bounds of its spaces lose precision
            made = _envpool().make_gymnasium(
                self._env_id, num_envs=self._count, num_threads=1, seed=seeds, max_episode_steps=limit
            )
            made.observation_space, made.action_space  # computed at their first use, with warnings  # noqa: B018
            return made

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def has(module: str, env_id: str) -> bool:
    """True if EnvPool has this environment in its package `module`, which is imported."""
    envpool = _envpool()
    importlib.import_module(f"{module}.registration")
    return env_id in envpool.list_all_envs()


def agrees(env: gymnasium.Env, env_id: str) -> bool:
    """True if EnvPool's observations and actions have the form of Gymnasium's: vectors of the same length, or the same indices.
    Bounds and precision may differ, because a run uses Gymnasium's. Images never agree: EnvPool draws its own."""
    theirs = _envpool().make_spec(env_id)
    return _same(env.observation_space, theirs.observation_space) and _same(env.action_space, theirs.action_space)


def _envpool() -> Any:
    """The package, without its module ALL, which takes 100 MB and more than a second. `has` imports what is needed."""
    if "envpool" in sys.modules:
        return sys.modules["envpool"]
    sys.modules[ALL] = ModuleType(ALL)
    try:
        import envpool
    finally:
        del sys.modules[ALL]
    return envpool


def _same(ours: spaces.Space, theirs: spaces.Space) -> bool:
    if isinstance(ours, spaces.Discrete) and isinstance(theirs, spaces.Discrete):
        return ours.n == theirs.n and ours.start == theirs.start
    vectors = isinstance(ours, spaces.Box) and isinstance(theirs, spaces.Box) and len(ours.shape) == 1
    return vectors and ours.shape == theirs.shape
