"""Epsilon-greedy acting, with an epsilon for each environment."""

from __future__ import annotations

import numpy as np

from learner.algorithms.base import ActionBatch, Mode
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.priorities import BEST_VALUE, TAKEN_VALUE, initial_priority
from learner.algorithms.exploration import epsilon_ladder
from learner.algorithms.masks import allowed_actions, draw_allowed, masked
from learner.inference.base import Inference
from replay.table.layout import PRIORITY
from transport.experience import Columns, ExperienceSpec

STOCHASTIC_EPSILON = 0.05


class QActing:
    """The inference returns Q-values [K, n].

    Rows keep the Q-values of the chosen and of the best action until their chunk is sent; they give its initial priorities.
    """

    def __init__(self, spec: ExperienceSpec, config: DqnConfig, inference: Inference) -> None:
        self._spec, self._config, self._inference = spec, config, inference
        self.state = inference.state
        self._epsilon: np.ndarray | float = 0.0  # until assign()
        self._random = np.random.default_rng()

    def assign(self, seed: int, offset: int, count: int, total: int) -> None:
        self._random = np.random.default_rng(seed)
        self._epsilon = epsilon_ladder(offset, count, total, self._config.epsilon_base, self._config.epsilon_power)

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionBatch:
        q, state = self._inference(observation, state)  # [K, n]
        allowed = allowed_actions(self._spec, observation)
        if allowed is not None:
            q = masked(q, allowed)
        action, best_value = q.argmax(1), q.max(1)
        epsilon = {"explore": self._epsilon, "stochastic": STOCHASTIC_EPSILON, "greedy": 0.0, "random": 1.0}[mode]
        explore = np.flatnonzero(self._random.random(len(q), np.float32) < epsilon)
        value = best_value
        if len(explore):
            if allowed is None:
                action[explore] = self._random.integers(q.shape[1], size=len(explore))
            else:
                action[explore] = draw_allowed(self._random, allowed[explore])
            value = best_value.copy()
            value[explore] = q[explore, action[explore]]
        return ActionBatch(action, {TAKEN_VALUE: value, BEST_VALUE: best_value}, state)

    def annotate(self, columns: Columns) -> Columns:
        return columns | {PRIORITY: initial_priority(self._spec, columns, self._config)}
