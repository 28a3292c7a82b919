"""A critic's value and loss by its outputs, the logits of bins, and the gradients by these, in arrays."""

from __future__ import annotations

import numpy as np

from learner.algorithms.reppo.bins import MIDDLES, spread
from learner.program.buffers import Buffer

ZERO = np.float32(0)
SUMMING = np.stack([np.ones_like(MIDDLES), MIDDLES], 1)  # [BINS, 2]: a product with it is a sum, and one times the bins' values


class BinnedOutputs:
    """For one or more critics, whose outputs are [critics, N, BINS]. Call value() first: the other methods use what it has
    computed."""

    def __init__(self) -> None:
        self._weights = Buffer()

    def value(self, outputs: np.ndarray) -> np.ndarray:
        """[critics, N]."""
        peak = np.maximum.reduce(outputs, -1, keepdims=True)
        self._found = np.subtract(outputs, peak, out=self._weights(outputs.shape))
        np.exp(self._found, out=self._found)
        sums = self._found @ SUMMING  # [critics, N, 2]
        self._total = sums[..., :1]
        self._log_total = (peak + np.log(self._total))[..., 0]
        self._value: np.ndarray = sums[..., 1] / sums[..., 0]
        return self._value

    def loss(self, outputs: np.ndarray, target: np.ndarray, finite: np.ndarray, out: np.ndarray) -> np.floating:
        """The sum of the critics' mean cross-entropies of the first b items with the distributions of their targets [b]; writes
        its gradient by their outputs into `out` [critics, b, BINS], 0 where the item is not `finite` [b]."""
        items = len(target)
        share, wanted = np.float32(1 / items), spread(np.where(finite, target, ZERO))
        np.divide(self._found[:, :items], self._total[:, :items], out=out)
        out -= wanted
        out *= share
        out[:, ~finite] = ZERO
        expected = [np.einsum("bk,bk->b", wanted, each) for each in outputs[:, :items]]
        return share * np.where(finite, self._log_total[:, :items] - expected, ZERO).sum()  # type: ignore[no-any-return]

    def by_value(self, slope: np.ndarray, out: np.ndarray) -> None:
        """Writes the gradient by the outputs of the last b items, given that by their values [critics, b], into `out`."""
        items = slope.shape[1]
        np.subtract(MIDDLES, self._value[:, -items:, None], out=out)
        out *= self._found[:, -items:]
        out *= slope[..., None] / self._total[:, -items:]
