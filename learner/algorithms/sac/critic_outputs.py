"""A critic's value and loss by its outputs, and the gradients by these, in arrays. Outputs are a value, or logits of bins."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from learner.algorithms.sac.bins import MIDDLES, spread
from learner.program.buffers import Buffer

ZERO, HALF = np.float32(0), np.float32(0.5)
SUMMING = np.stack([np.ones_like(MIDDLES), MIDDLES], 1)  # [BINS, 2]: a product with it is a sum, and one times the bins' values


class CriticOutputs(Protocol):
    """For two critics, whose outputs are [2, N, outputs]. Call value() first: the other methods use what it has computed."""

    def value(self, outputs: np.ndarray) -> np.ndarray:
        """[2, N]."""

    def loss(self, outputs: np.ndarray, target: np.ndarray, td: np.ndarray, finite: np.ndarray, out: np.ndarray) -> np.floating:
        """The sum of the critics' mean losses of the first b items, with targets [b]; writes its gradient by their outputs into
        `out` [2, b, outputs]. td: target - value [2, b], 0 where the item is not `finite` [b]."""

    def by_value(self, slope: np.ndarray, out: np.ndarray) -> None:
        """Writes the gradient by the outputs of the last b items, given that by their values [2, b], into `out`."""


class ScalarOutputs:
    """Half the squared error."""

    def value(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[..., 0]

    def loss(self, outputs: np.ndarray, target: np.ndarray, td: np.ndarray, finite: np.ndarray, out: np.ndarray) -> np.floating:
        share = np.float32(1 / len(target))
        np.multiply(td, -share, out=out[..., 0])
        return HALF * share * np.vdot(td, td)  # type: ignore[no-any-return]

    def by_value(self, slope: np.ndarray, out: np.ndarray) -> None:
        out[..., 0] = slope


class BinnedOutputs:
    """The cross-entropy with the target's distribution over bins."""

    def __init__(self) -> None:
        self._weights = Buffer()

    def value(self, outputs: np.ndarray) -> np.ndarray:
        peak = np.maximum.reduce(outputs, -1, keepdims=True)
        self._found = np.subtract(outputs, peak, out=self._weights(outputs.shape))
        np.exp(self._found, out=self._found)
        sums = self._found @ SUMMING  # [2, N, 2]
        self._total = sums[..., :1]
        self._log_total = (peak + np.log(self._total))[..., 0]
        self._value: np.ndarray = sums[..., 1] / sums[..., 0]
        return self._value

    def loss(self, outputs: np.ndarray, target: np.ndarray, td: np.ndarray, finite: np.ndarray, out: np.ndarray) -> np.floating:
        items = len(target)
        share, wanted = np.float32(1 / items), spread(np.where(finite, target, ZERO))
        np.divide(self._found[:, :items], self._total[:, :items], out=out)
        out -= wanted
        out *= share
        out[:, ~finite] = ZERO
        expected = [np.einsum("bk,bk->b", wanted, each) for each in outputs[:, :items]]
        return share * np.where(finite, self._log_total[:, :items] - expected, ZERO).sum()  # type: ignore[no-any-return]

    def by_value(self, slope: np.ndarray, out: np.ndarray) -> None:
        items = slope.shape[1]
        np.subtract(MIDDLES, self._value[:, -items:, None], out=out)
        out *= self._found[:, -items:]
        out *= slope[..., None] / self._total[:, -items:]
