"""A policy that acts in K environments, with the stacked observations and, for a recurrent policy, the state."""

from __future__ import annotations

import numpy as np

from actors.stack import Stack
from learner.algorithms.base import ActingPolicy, Explanation, Mode, explain, on_episode_end
from transport.experience import Columns, ExperienceSpec


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
        """What act() gives to the policy next, {name: [K, stack, *shape]}. Later calls do not change these arrays."""
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

    def ended(self, where: list[int], returns: list[float]) -> None:
        """Tells the policy that episodes of environments `where` ended with `returns`."""
        on_episode_end(self.policy, np.array(where), np.array(returns))
