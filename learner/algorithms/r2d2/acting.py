"""Epsilon-greedy acting that keeps Q-values for the initial priorities of whole chunks."""

from __future__ import annotations

from learner.algorithms.dqn.acting import QActing
from learner.algorithms.r2d2.config import R2d2Config
from learner.algorithms.r2d2.priorities import sequence_priority
from learner.inference.base import Inference
from replay.table.layout import PRIORITY
from transport.experience import Columns, ExperienceSpec


class SequenceActing(QActing):
    """Each chunk has one initial priority."""

    def __init__(self, spec: ExperienceSpec, config: R2d2Config, inference: Inference) -> None:
        super().__init__(spec, config, inference)
        self._config = config

    def annotate(self, columns: Columns) -> Columns:
        return columns | {PRIORITY: sequence_priority(self._spec, columns, self._config)}
