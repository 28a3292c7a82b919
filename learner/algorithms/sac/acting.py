"""Acting by a Gaussian policy over continuous actions."""

from __future__ import annotations

import numpy as np

from learner.algorithms.arithmetic.squashed import draw, draw_uniform, halves
from learner.algorithms.base import ActionBatch, Mode
from learner.inference.base import Inference
from transport.experience import Columns, Continuous, ExperienceSpec


class GaussianActing:
    """The inference returns mean and log-std, [K, 2A]."""

    def __init__(self, spec: ExperienceSpec, inference: Inference) -> None:
        assert isinstance(spec.action, Continuous)
        self._actions, self._inference = len(spec.action.low), inference
        self.state = inference.state
        self._random = np.random.default_rng()

    def assign(self, seed: int, offset: int, count: int, total: int) -> None:
        self._random = np.random.default_rng(seed)

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionBatch:
        if mode == "random":
            count = len(next(iter(observation.values())))
            return ActionBatch(draw_uniform(self._random, (count, self._actions)), {}, state)
        output, state = self._inference(observation, state)
        mean, log_std = halves(output)
        return ActionBatch(mean.copy() if mode == "greedy" else draw(self._random, mean, log_std), {}, state)

    def annotate(self, columns: Columns) -> Columns:
        return columns
