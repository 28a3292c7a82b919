"""Named tensors of a network in numpy, with those that are trained in one vector: what nn.Module is to torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from learner.program.buffers import shaped
from learner.weights.checkpoint import load_into


class Module:
    """Tensors by the names that they have in the state_dict of torch's module, in its order.

    Those that are trained are views of `flat`, one float32 vector. An optimiser moves it and its gradients into its own vectors:
    make networks over the tensors after the optimiser.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray], trained: Collection[str] = ()) -> None:
        """Copies the tensors."""
        self.tensors = {name: np.array(value) for name, value in tensors.items()}
        self.trained = [name for name in tensors if name in trained]
        self.flat = np.empty(0, np.float32)
        self.gradients: dict[str, np.ndarray] = {}
        self.move(np.empty(sum(tensors[name].size for name in self.trained), np.float32))

    def move(self, flat: np.ndarray, gradient: np.ndarray | None = None) -> None:
        """Keeps the trained tensors in `flat` from now on, and their gradients in `gradient`."""
        before = {name: self.tensors[name] for name in self.trained}
        self.flat = flat
        self.tensors |= self.views(flat)
        self.gradients = {} if gradient is None else self.views(gradient)
        for name, value in before.items():
            self.tensors[name][...] = value

    def views(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """The parts of a vector like `flat`, by the names and in the shapes of the trained tensors."""
        found, start = {}, 0
        for name in self.trained:
            shape, size = self.tensors[name].shape, self.tensors[name].size
            found[name] = shaped(flat[start : start + size], shape)
            start += size
        return found

    def state_dict(self) -> dict[str, np.ndarray]:
        return self.tensors

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Copies all weights into the tensors. Raises CheckpointError, having changed nothing, if they do not match."""
        load_into(self, dict(weights))

    def copy(self) -> Module:
        """A module of its own with the same values, which no optimiser changes."""
        return Module(self.tensors, self.trained)
