"""A policy that acts in K environments: it stacks observations and keeps the state of a recurrent policy."""

from __future__ import annotations

import numpy as np

from learner.algorithms.base import ActingPolicy, Explanation, Mode, explain
from transport.experience import Columns, ExperienceSpec


class Stack:
    """The last `spec.stack` observations of each of K environments, within the current episode.

    At the start of an episode the first observation takes the places of the older ones. Replay builds the same stacks from rows;
    both must agree byte for byte.
    """

    def __init__(self, spec: ExperienceSpec, count: int) -> None:
        """Call `reset` before the first use."""
        self._stacked = {field.name: np.zeros((count, spec.stack, *field.shape), np.dtype(field.dtype)) for field in spec.fields}

    def reset(self, observation: dict[str, np.ndarray], where: np.ndarray | None = None) -> None:
        """Fills all places with observation[name] [K, *shape], in environments where `where` [K] is True (None: all)."""
        for name, old in self._stacked.items():
            stacked = old.copy()
            rows = slice(None) if where is None else where
            stacked[rows] = observation[name][rows, None]
            self._stacked[name] = stacked

    def push(self, observation: dict[str, np.ndarray], started: np.ndarray) -> None:
        """Adds observation[name] [K, *shape]; where `started` [K] is True, it is the first of a new episode."""
        for name, old in self._stacked.items():
            if old.shape[1] == 1:  # observations are new arrays, so a stack of one needs no copy
                self._stacked[name] = observation[name][:, None]
                continue
            stacked = np.empty_like(old)
            stacked[:, :-1] = old[:, 1:]
            stacked[:, -1] = observation[name]
            stacked[started] = observation[name][started, None]
            self._stacked[name] = stacked

    @property
    def stacked(self) -> dict[str, np.ndarray]:
        """[K, stack, *shape] by field name, oldest first, at rest dtype. Later calls do not change these arrays."""
        return dict(self._stacked)


def policy_seed(seed: int, stream: int = 1) -> int:
    """The seed of a policy that acts in environments whose first seed is `seed`. With the same one it would draw the numbers that
    the first environment draws, and its actions would foretell what happens. `stream`: another one for another use."""
    return int(np.random.SeedSequence((seed, stream)).generate_state(1)[0])


class Agent:
    """Call reset() once, then act() and push() in turn."""

    def __init__(self, spec: ExperienceSpec, policy: ActingPolicy, count: int) -> None:
        self.policy = policy
        self._stack = Stack(spec, count)
        self._state: Columns = {name: np.zeros((count, *shape), np.float32) for name, shape in policy.state.items()}

    def reset(self, observation: Columns) -> None:
        """Starts an episode in all environments with observation[name] [K, *shape]."""
        self._stack.reset(observation)
        self._state = {name: np.zeros_like(values) for name, values in self._state.items()}

    def act(self, mode: Mode) -> tuple[np.ndarray, Columns]:
        """Actions [K] or [K, A], and further columns of the rows: the policy's, and the state before the step."""
        before = self._state
        chosen = self.policy.act(self._stack.stacked, before, mode)
        self._state = chosen.state
        return chosen.action, chosen.columns | before

    @property
    def stacked(self) -> Columns:
        """The next observations of the policy, {name: [K, stack, *shape]}. Later calls do not change these arrays."""
        return self._stack.stacked

    def explain(self) -> Explanation | None:
        """The policy's figures for the actions of the next step; None if it gives none."""
        return explain(self.policy, self._stack.stacked, self._state)

    def push(self, observation: Columns, ended: np.ndarray) -> None:
        """Adds the next observation [K, *shape]; where `ended` [K] it is the first of a new episode."""
        self._stack.push(observation, ended)
        if self._state and ended.any():  # new arrays, because the caller may have kept the old ones
            self._state = {
                name: np.where(ended.reshape(-1, *[1] * (values.ndim - 1)), np.float32(0), values)
                for name, values in self._state.items()
            }
