"""A policy that acts by a network of the test's own."""

from __future__ import annotations

from typing import Any

import numpy as np

from learner.algorithms.base import ActionBatch, Mode
from learner.inference.module import infer_by
from tests.learner.examples import algorithm_of as algorithm_of
from tests.learner.examples import weights_of
from transport.experience import Columns, ExperienceSpec


class Acting:
    """What an actor has, and the network that it acts by. Environments are the first of as many as there are.

    In float32 it follows the network's weights at once; in other precisions after refresh()."""

    def __init__(self, spec: ExperienceSpec, config: Any, network: Any = None, precision: str = "float32") -> None:
        algorithm = algorithm_of(config)
        self.network = algorithm.policy(spec) if network is None else network
        wanted = "float32" if algorithm.exact_acting and precision == "auto" else precision
        self._at_once = wanted == "float32"
        self._inference = infer_by(self.network, wanted)
        self.policy = algorithm.acting(spec, self._inference)

    def assign(self, seed: int, count: int = 1) -> None:
        self.policy.assign(seed, 0, count, count)

    def refresh(self) -> None:
        self._inference.load(weights_of(self.network))

    def act(self, observation: Columns, mode: Mode) -> ActionBatch:
        if self._at_once:
            self.refresh()
        return self.policy.act(observation, {}, mode)

    def answers(self, observation: Columns) -> np.ndarray:
        """What the network says, [K, outputs]."""
        if self._at_once:
            self.refresh()
        return self._inference(observation, {})[0]
