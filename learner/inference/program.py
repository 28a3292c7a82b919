"""The forward pass of a described policy in numpy.

In a small network most of torch's time is overhead per operation: for the few rows of an actor's step numpy takes a tenth of it,
and a fifth to a half where there are small convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from learner.description import PolicyDescription
from learner.program.buffers import shaped
from learner.program.inputs import Inputs
from learner.program.network import Network
from transport.experience import Columns

NOTHING = np.empty((0, 0), np.float32)  # the rows of a network that reads images alone
Weights = Mapping[str, np.ndarray]


class Program:
    """Inference by numpy alone."""

    def __init__(self, description: PolicyDescription) -> None:
        assert description.program is not None
        self._description = description
        self.state: Mapping[str, tuple[int, ...]] = description.state
        self._weights = {
            name: shaped(np.zeros(math.prod(shape), dtype), shape) for name, (shape, dtype) in description.tensors.items()
        }
        first = description.program[0]
        self._inputs = Inputs([self._weights[name] for name in first.tensors], **first.options)
        self._network = Network(description.program, self._inputs.places, self._weights)

    @property
    def weights(self) -> Weights:
        return self._weights

    def load(self, weights: Weights) -> None:
        self._description.check(weights)
        for name, mine in self._weights.items():
            mine[...] = weights[name]
        self._network.refresh()

    def __call__(self, observation: Columns, state: Columns) -> tuple[np.ndarray, Columns]:
        rows = self._inputs.read(observation) if self._inputs.features else NOTHING
        outputs, after = self._network.step(rows, state, observation)
        return outputs.copy(), after
