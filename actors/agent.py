"""K environments' policy with what it has seen: the stacked observation and, of a recurrent policy, the state."""

from __future__ import annotations

import numpy as np

from actors.stack import Stack
from learner.algorithms.base import ActingPolicy, Mode
from transport.experience import Columns, ExperienceSpec


class Agent:
    """reset() once; then act() and push() in turn."""

    def __init__(self, spec: ExperienceSpec, policy: ActingPolicy, count: int) -> None:
        self.policy = policy
        self._stack = Stack(spec, count)
        self._state: Columns = {name: np.zeros((count, *shape), np.float32) for name, shape in policy.state.items()}

    def reset(self, observation: Columns) -> None:
        """observation[name] [K, *shape] is the first of an episode in each environment."""
        self._stack.reset(observation)
        self._state = {name: np.zeros_like(values) for name, values in self._state.items()}

    def act(self, mode: Mode) -> tuple[np.ndarray, Columns]:
        """Actions as they rest, and the columns of the rows: the state that went in is among them."""
        before = self._state
        chosen = self.policy.act(self._stack.stacked, before, mode)
        self._state = chosen.state
        return chosen.action, chosen.columns | before

    def push(self, observation: Columns, ended: np.ndarray) -> None:
        """What followed, [K, *shape]; where an episode has ended [K] it is the first of the next."""
        self._stack.push(observation, ended)
        if self._state:  # new arrays: rows may hold the old ones
            self._state = {
                name: np.where(ended.reshape(-1, *[1] * (values.ndim - 1)), np.float32(0), values)
                for name, values in self._state.items()
            }
