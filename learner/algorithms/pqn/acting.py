"""Epsilon-greedy acting, with an epsilon for each environment."""

from __future__ import annotations

import numpy as np

from learner.algorithms.base import ActionBatch, Mode
from learner.algorithms.exploration import STOCHASTIC_EPSILON, epsilon_greedy, epsilon_ladder
from learner.algorithms.masks import allowed_actions
from learner.algorithms.pqn.config import PqnConfig
from learner.inference.base import Inference
from transport.experience import Columns, ExperienceSpec


class EpsilonGreedyActing:
    """The inference returns Q-values [K, n]."""

    def __init__(self, spec: ExperienceSpec, config: PqnConfig, inference: Inference) -> None:
        self._spec, self._config, self._inference = spec, config, inference
        self.state = inference.state
        self._epsilon: np.ndarray | float = 0.0  # until assign()
        self._random = np.random.default_rng()

    def assign(self, seed: int, offset: int, count: int, total: int) -> None:
        self._random = np.random.default_rng(seed)
        self._epsilon = epsilon_ladder(offset, count, total, self._config.epsilon_base, self._config.epsilon_power)

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionBatch:
        q, state = self._inference(observation, state)  # [K, n]
        epsilon = {"explore": self._epsilon, "stochastic": STOCHASTIC_EPSILON, "greedy": 0.0, "random": 1.0}[mode]
        return ActionBatch(epsilon_greedy(self._random, q, epsilon, allowed_actions(self._spec, observation)), {}, state)

    def annotate(self, columns: Columns) -> Columns:
        return columns
