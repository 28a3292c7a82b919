"""Acting by a Gaussian policy over continuous actions, whose noise may be correlated in time."""

from __future__ import annotations

import numpy as np

from learner.algorithms.arithmetic.squashed import draw, halves, spread_uniformly
from learner.algorithms.base import ActionBatch, Mode
from learner.algorithms.noise import ColouredNoise
from learner.inference.base import Inference
from transport.experience import Columns, Continuous, ExperienceSpec


class GaussianActing:
    """The inference returns mean and log-std, [K, 2A]. Exploration draws its noise from sequences, `stochastic` does not."""

    def __init__(self, spec: ExperienceSpec, inference: Inference, noise_exponent: float = 0.0) -> None:
        assert isinstance(spec.action, Continuous)
        self._actions, self._inference = len(spec.action.low), inference
        self._exponent = noise_exponent
        self.state = inference.state
        self.assign(0, 0, 1, 1)

    def assign(self, seed: int, offset: int, count: int, total: int) -> None:
        self._random = np.random.default_rng(seed)
        self._noise = ColouredNoise(self._random, self._exponent)

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionBatch:
        if mode == "random":
            count = len(next(iter(observation.values())))
            return ActionBatch(spread_uniformly(self._noise.draw((count, self._actions))), {}, state)
        output, state = self._inference(observation, state)
        mean, log_std = halves(output)
        if mode == "greedy":
            return ActionBatch(mean.copy(), {}, state)
        if mode == "stochastic":
            return ActionBatch(draw(self._random, mean, log_std), {}, state)
        return ActionBatch(mean + np.exp(log_std) * self._noise.draw(mean.shape), {}, state)  # type: ignore[arg-type]

    def annotate(self, columns: Columns) -> Columns:
        return columns
