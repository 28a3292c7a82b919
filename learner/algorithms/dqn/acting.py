"""Epsilon-greedy acting that keeps Q-values for initial priorities."""

from __future__ import annotations

import numpy as np

from learner.algorithms.base import ActionBatch, Mode
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.priorities import BEST_VALUE, TAKEN_VALUE, initial_priority
from learner.algorithms.exploration import EpsilonGreedyActing
from learner.inference.base import Inference
from replay.table.layout import PRIORITY
from transport.experience import Columns, ExperienceSpec


class QActing(EpsilonGreedyActing):
    """Rows keep the Q-values of the chosen and of the best action until their chunk is sent, for its initial priorities."""

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionBatch:
        q, state = self._inference(observation, state)
        action, q = self._choose(q, observation, mode)
        return ActionBatch(action, {TAKEN_VALUE: q[np.arange(len(q)), action], BEST_VALUE: q.max(1)}, state)


class DqnActing(QActing):
    """Each row has an initial priority."""

    def __init__(self, spec: ExperienceSpec, config: DqnConfig, inference: Inference) -> None:
        super().__init__(spec, config, inference)
        self._config = config

    def annotate(self, columns: Columns) -> Columns:
        return columns | {PRIORITY: initial_priority(self._spec, columns, self._config)}
