"""Environments of Gymnasium's vector API that are written as a batch: those with a `vector_entry_point` in the registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from actors.envs.base import Simulators, SimulatorStep
from actors.envs.foreign.actions import to_env_actions
from actors.envs.spec import flatten_batch
from actors.errors import EnvError

TRIED_STEPS = 5
REMEDY = "take --env.backend gymnasium"


class VectorSimulators(Simulators):
    """K environments that a gymnasium.vector.VectorEnv steps.

    Environments whose episode ended are reset by `reset(options={"reset_mask": mask})`, as Gymnasium's mode DISABLED has it.
    Gymnasium seeds a batch by one number and counts on from it, so only the first seed is used. A reset of some environments
    ignores their seeds: their random numbers continue from the first seed.
    """

    takes_seeds = False

    def __init__(
        self, batch: VectorEnv, observation_space: gymnasium.Space, action_space: gymnasium.Space, max_episode_steps: int = 0
    ) -> None:
        """`observation_space` and `action_space` are those of one environment. `max_episode_steps`: a limit besides the batch's
        own; 0: none."""
        self.batch, self._count = batch, batch.num_envs
        self._limit, self._length = max_episode_steps or np.inf, np.zeros(batch.num_envs, np.int64)
        self._observation_space, self._action_space = observation_space, action_space

    def reset(self, where: np.ndarray, seeds: Sequence[int | None]) -> dict[str, np.ndarray]:
        self._length[where] = 0
        if len(where) == self._count:
            observation, _ = self.batch.reset(seed=None if None in seeds else seeds[0])
            return flatten_batch(self._observation_space, observation)
        mask = np.zeros(self._count, bool)
        mask[where] = True
        observation, _ = self.batch.reset(options={"reset_mask": mask})
        return {name: rows[where] for name, rows in flatten_batch(self._observation_space, observation).items()}

    def step(self, actions: np.ndarray) -> SimulatorStep:
        observation, reward, terminated, truncated, info = self.batch.step(to_env_actions(self._action_space, actions))
        self._length += 1
        truncated = ~terminated & (truncated | (self._length >= self._limit))
        return SimulatorStep(
            flatten_batch(self._observation_space, observation),
            np.array(reward, np.float32),
            np.array(terminated, bool),
            truncated,
            self._figure(info, "score"),
            self._figure(info, "is_success" if "is_success" in info else "success"),
            info=self._arrays(info) if (terminated | truncated).any() else {},
        )

    def close(self) -> None:
        self.batch.close()

    def _arrays(self, info: dict[str, Any]) -> dict[str, Sequence[Any]]:
        return {name: self._figure(info, name) for name, values in info.items() if isinstance(values, np.ndarray)}

    def _figure(self, info: dict[str, Any], name: str) -> Sequence[Any]:
        """[K] of the info's values, None where an environment gave none."""
        values, given = info.get(name), info.get(f"_{name}")
        if values is None or np.ndim(values) == 0 or len(values) != self._count:
            return [None] * self._count
        return [value if given is None or given[k] else None for k, value in enumerate(values)]


def open_vector(env: gymnasium.Env, env_id: str, count: int, options: dict[str, Any]) -> VectorSimulators:
    """`count` environments of an id's `vector_entry_point`; `env` is one that gymnasium.make has made. Raises EnvError."""
    limit = env.spec.max_episode_steps if env.spec else None
    more: dict[str, Any] = options | ({"max_episode_steps": limit} if limit else {})
    if env.spec is None or env.spec.vector_entry_point is None:
        raise EnvError(f"{env_id} has no vector_entry_point in Gymnasium's registry: {REMEDY}")

    def make(number: int) -> VectorEnv:
        return gymnasium.make_vec(env_id, number, vectorization_mode="vector_entry_point", **more)

    tried = make(2)
    try:
        check_partial_reset(env_id, tried)
    finally:
        tried.close()
    return VectorSimulators(make(count), env.observation_space, env.action_space)


def check_partial_reset(env_id: str, batch: VectorEnv) -> None:
    """Raises EnvError unless one of two environments can be reset without the other. Otherwise the batch would reset itself, in a
    step that ignores its action."""
    fault = f"{env_id}: its vector environment cannot reset one environment without the others: {REMEDY}"
    if batch.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP:
        raise EnvError(fault)
    space = batch.single_observation_space
    batch.action_space.seed(0)
    batch.reset(seed=0)
    for _ in range(TRIED_STEPS):
        before = flatten_batch(space, batch.step(batch.action_space.sample())[0])  # a copy: a batch may give one array each time
    after = flatten_batch(space, batch.reset(options={"reset_mask": np.array([True, False])})[0])
    if not all(np.array_equal(rows[1], after[name][1]) for name, rows in before.items()):
        raise EnvError(fault)
