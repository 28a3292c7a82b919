"""One step of the built-in memories in numpy.

For the few rows of an actor each operation of numpy takes longer than its arithmetic, so the weights are rearranged when they are
loaded: all gates come from one matrix product, those with a sigmoid are adjacent, and the factor 1/2 of their argument is in the
weights. It is a power of two, so the results are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from learner.program.layers import Layer
from transport.experience import Columns

HALF = np.float32(0.5)


class MemoryLayer(Layer):
    """The step of a memory. `before` and `after`: the state {name: [N, width]}, set and read by the network."""

    trained, learns = True, False
    before: Columns
    after: Columns

    def __init__(self, tensors: Sequence[np.ndarray]) -> None:
        super().__init__(tensors, (), False)

    def forward(self, values: np.ndarray) -> np.ndarray:
        outputs, self.after = self.step(values.T, self.before)
        return outputs.T

    def step(self, values: np.ndarray, state: Columns) -> tuple[np.ndarray, Columns]:
        """The torso's features [features, N] and the state before [N, width] -> the outputs [width, N], and the state after."""
        raise NotImplementedError


class LstmCell(MemoryLayer):
    """torch.nn.LSTM. Its weights have the gates in the order input, forget, cell, output; here the cell gate comes last."""

    def __init__(self, tensors: Sequence[np.ndarray]) -> None:
        super().__init__(tensors)
        weight, recurrent, _, _ = tensors
        self._size = size = recurrent.shape[1]
        self._weight = np.empty((4 * size, weight.shape[1] + size), np.float32)
        self._bias = np.empty((4 * size, 1), np.float32)
        self.refresh()

    def refresh(self) -> None:
        weight, recurrent, bias, other = self._tensors
        size = self._size
        order = np.r_[: 2 * size, 3 * size : 4 * size, 2 * size : 3 * size]
        self._weight[...] = np.concatenate([weight, recurrent], 1)[order]
        self._bias[:, 0] = (bias + other)[order]
        _halve(self._weight, self._bias, 3 * size)

    def step(self, values: np.ndarray, state: Columns) -> tuple[np.ndarray, Columns]:
        size = self._size
        gates = self._weight @ np.concatenate([values, state["memory/h"].T])
        gates += self._bias
        np.tanh(gates, out=gates)
        _finish_sigmoid(gates[: 3 * size])
        new = gates[3 * size :]
        new *= gates[:size]
        cell = gates[size : 2 * size] * state["memory/c"].T
        cell += new
        hidden = np.tanh(cell)
        hidden *= gates[2 * size : 3 * size]
        return hidden, {"memory/h": hidden.T, "memory/c": cell.T}


class GruCell(MemoryLayer):
    """torch.nn.GRU. Its weights have the gates in the order reset, update, new. The reset gate multiplies only the part of the
    new gate that comes from the state, so the product keeps its two parts apart."""

    def __init__(self, tensors: Sequence[np.ndarray]) -> None:
        super().__init__(tensors)
        weight, recurrent, _, _ = tensors
        self._size = size = recurrent.shape[1]
        self._weight = np.zeros((4 * size, weight.shape[1] + size), np.float32)
        self._bias = np.empty((4 * size, 1), np.float32)
        self.refresh()

    def refresh(self) -> None:
        weight, recurrent, bias, other = self._tensors
        size = self._size
        gates, given, kept = slice(2 * size), slice(2 * size, 3 * size), slice(3 * size, 4 * size)
        self._weight[: 3 * size, :-size] = weight
        self._weight[gates, -size:] = recurrent[gates]
        self._weight[kept, -size:] = recurrent[given]
        self._bias[: 3 * size, 0] = bias
        self._bias[gates, 0] += other[gates]
        self._bias[kept, 0] = other[given]
        _halve(self._weight, self._bias, 2 * size)

    def step(self, values: np.ndarray, state: Columns) -> tuple[np.ndarray, Columns]:
        size, before = self._size, state["memory/h"].T
        sums = self._weight @ np.concatenate([values, before])
        sums += self._bias
        gates = sums[: 2 * size]
        np.tanh(gates, out=gates)
        _finish_sigmoid(gates)
        new = sums[3 * size :]
        new *= gates[:size]
        new += sums[2 * size : 3 * size]
        np.tanh(new, out=new)
        hidden = before - new
        hidden *= gates[size:]
        hidden += new
        return hidden, {"memory/h": hidden.T}


def _halve(weight: np.ndarray, bias: np.ndarray, rows: int) -> None:
    """In place, the first `rows`. By sigmoid(x) = (1 + tanh(x / 2)) / 2 one tanh serves all gates; this is the inner 1/2."""
    weight[:rows] *= HALF
    bias[:rows] *= HALF


def _finish_sigmoid(gates: np.ndarray) -> None:
    """In place: the rest of the sigmoid, after the tanh."""
    gates += 1
    gates *= HALF


MEMORIES: dict[str, type[MemoryLayer]] = {"lstm": LstmCell, "gru": GruCell}
