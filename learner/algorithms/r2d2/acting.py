"""Epsilon-greedy acting with a memory."""

from __future__ import annotations

from learner.algorithms.dqn.acting import QActing
from learner.algorithms.r2d2.config import R2d2Config
from learner.algorithms.r2d2.priorities import sequence_priority
from learner.inference.base import Inference
from replay.table.layout import PRIORITY
from transport.experience import Columns, ExperienceSpec


class SequenceActing(QActing):
    """Acts as DQN does; the initial priorities are those of whole chunks."""

    def __init__(self, spec: ExperienceSpec, config: R2d2Config, inference: Inference) -> None:
        super().__init__(spec, config.exploration, inference)
        self._options = config

    def annotate(self, columns: Columns) -> Columns:
        return columns | {PRIORITY: sequence_priority(self._spec, columns, self._options)}
