"""The operations of programs: forwards, and backwards for learning.

Rows are items: values are [..., N, features]. Results lie in buffers of the layer, which the next call overwrites; a layer that
is `in_place` overwrites its input instead. A gradient that is given to backward() may be overwritten, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from learner.program.buffers import Buffer, ones

ZERO, ONE = np.float32(0), np.float32(1)
Arrays = Sequence[np.ndarray]


class Layer:
    """One operation."""

    trained: ClassVar[bool] = False  # gradient descent changes its tensors; those of other layers are running statistics
    elementwise: ClassVar[bool] = False  # backward() needs the result, not the input: it may be computed in place
    learns: ClassVar[bool] = True  # there is a backward()

    def __init__(self, tensors: Arrays, gradients: Arrays, in_place: bool, **options: Any) -> None:
        """`gradients` of the tensors, into which backward() writes; empty where nothing is learned."""
        self._tensors, self._gradients, self._in_place = tensors, gradients, in_place
        self._out, self._scratch = Buffer(), Buffer()

    def refresh(self) -> None:
        """Called after the tensors have changed in place, where nothing is learned."""

    def forward(self, values: np.ndarray) -> np.ndarray:
        """[..., N, inputs] -> [..., N, outputs]."""
        raise NotImplementedError

    def backward(self, gradient: np.ndarray, rows: int | None, by_input: bool | slice) -> np.ndarray | None:
        """The gradient by the last result, of all its rows or the first M, [..., M, outputs] -> by the input [..., M, inputs],
        where that is wanted (a slice: of linear layers, those columns). Writes the gradients by the tensors, summed over the
        first `rows` rows (None: all)."""
        raise NotImplementedError

    def _target(self, values: np.ndarray) -> np.ndarray:
        return values if self._in_place else self._out(values.shape)


class Linear(Layer):
    """W x + b. A weight [n, outputs, inputs] with a bias [n, 1, outputs] is n layers side by side, on one input [N, inputs] or on
    n of them. The memory of weights is as shaped() says."""

    trained = True

    def __init__(self, tensors: Arrays, gradients: Arrays, in_place: bool, **options: Any) -> None:
        super().__init__(tensors, gradients, in_place)
        self._weight, self._bias = tensors[0], tensors[1] if len(tensors) > 1 else None
        self._product = np.dot if self._weight.ndim == 2 else np.matmul  # the former takes less time to call
        self._transposed = self._weight.swapaxes(-1, -2)
        self._by_transposed = gradients[0].swapaxes(-1, -2) if gradients else None
        self._seen, self._by_input = np.empty(0), Buffer()

    def forward(self, values: np.ndarray) -> np.ndarray:
        self._seen = values
        items = values.shape[:-1] if self._weight.ndim == 2 else (len(self._weight), values.shape[-2])
        out = self._out((*items, self._weight.shape[-2]))
        self._product(values, self._transposed, out=out)
        if self._bias is not None:
            np.add(out, self._bias, out=out)
        return out

    def backward(self, gradient: np.ndarray, rows: int | None, by_input: bool | slice) -> np.ndarray | None:
        some = gradient if rows is None else gradient[..., :rows, :]
        count = some.shape[-2]
        self._product(self._seen[..., :count, :].swapaxes(-1, -2), some, out=self._by_transposed)
        if self._bias is not None:
            summing = ones(count) if self._weight.ndim == 2 else ones(count)[None]
            self._product(summing, some, out=self._gradients[1])
        if not by_input:
            return None
        weight = self._weight[..., by_input] if isinstance(by_input, slice) else self._weight
        out = self._by_input((*gradient.shape[:-1], weight.shape[-1]))
        if weight.shape[-2] == 1:  # of a single output: in a third of the time of the product
            return np.einsum("...no,...oi->...ni", gradient, weight, out=out)  # type: ignore[no-any-return]
        return self._product(gradient, weight, out=out)


class Relu(Layer):
    elementwise = True

    def __init__(self, tensors: Arrays, gradients: Arrays, in_place: bool, **options: Any) -> None:
        super().__init__(tensors, gradients, in_place)
        self._positive = Buffer(np.bool_)

    def forward(self, values: np.ndarray) -> np.ndarray:
        self._result = np.maximum(values, ZERO, out=self._target(values))
        return self._result

    def backward(self, gradient: np.ndarray, rows: int | None, by_input: bool | slice) -> np.ndarray | None:
        positive = np.greater(self._result[..., : gradient.shape[-2], :], ZERO, out=self._positive(gradient.shape))
        return np.multiply(gradient, positive, out=gradient)


class Tanh(Layer):
    elementwise = True

    def forward(self, values: np.ndarray) -> np.ndarray:
        self._result = np.tanh(values, out=self._target(values))
        return self._result

    def backward(self, gradient: np.ndarray, rows: int | None, by_input: bool | slice) -> np.ndarray | None:
        result, slope = self._result[..., : gradient.shape[-2], :], self._scratch(gradient.shape)
        np.multiply(result, result, out=slope)
        np.subtract(ONE, slope, out=slope)
        return np.multiply(gradient, slope, out=gradient)


class Sigmoid(Layer):
    elementwise = True

    def forward(self, values: np.ndarray) -> np.ndarray:
        self._result = sigmoid(values, self._target(values))
        return self._result

    def backward(self, gradient: np.ndarray, rows: int | None, by_input: bool | slice) -> np.ndarray | None:
        result, slope = self._result[..., : gradient.shape[-2], :], self._scratch(gradient.shape)
        np.subtract(ONE, result, out=slope)
        np.multiply(slope, result, out=slope)
        return np.multiply(gradient, slope, out=gradient)


class Silu(Layer):
    """x sigmoid(x)."""

    def forward(self, values: np.ndarray) -> np.ndarray:
        self._seen, self._share = values, sigmoid(values, self._scratch(values.shape))
        return np.multiply(values, self._share, out=self._out(values.shape))

    def backward(self, gradient: np.ndarray, rows: int | None, by_input: bool | slice) -> np.ndarray | None:
        count = gradient.shape[-2]
        share = self._share[..., :count, :]
        gradient *= share * (ONE + self._seen[..., :count, :] * (ONE - share))
        return gradient


class Elu(Layer):
    elementwise = True

    def __init__(self, tensors: Arrays, gradients: Arrays, in_place: bool, alpha: float = 1.0) -> None:
        super().__init__(tensors, gradients, in_place)
        self._alpha = np.float32(alpha)

    def forward(self, values: np.ndarray) -> np.ndarray:
        low = np.expm1(np.minimum(values, ZERO))
        low *= self._alpha
        np.copyto(low, values, where=values > 0)
        self._result = self._target(values)
        self._result[...] = low
        return self._result

    def backward(self, gradient: np.ndarray, rows: int | None, by_input: bool | slice) -> np.ndarray | None:
        result = self._result[..., : gradient.shape[-2], :]
        gradient *= np.where(result > 0, ONE, result + self._alpha)
        return gradient


class LeakyRelu(Layer):
    def __init__(self, tensors: Arrays, gradients: Arrays, in_place: bool, slope: float = 0.01) -> None:
        super().__init__(tensors, gradients, in_place)
        self._least = np.float32(slope)

    def forward(self, values: np.ndarray) -> np.ndarray:
        self._slope = np.where(values > 0, ONE, self._least)
        return np.multiply(values, self._slope, out=self._out(values.shape))

    def backward(self, gradient: np.ndarray, rows: int | None, by_input: bool | slice) -> np.ndarray | None:
        gradient *= self._slope[..., : gradient.shape[-2], :]
        return gradient


class LayerNorm(Layer):
    """Normalises the features of each item, Ba et al. 2016 (arXiv:1607.06450); then an optional weight and bias.

    Sums are products with vectors: these take a third of the time of numpy's sums.
    """

    trained = True

    def __init__(self, tensors: Arrays, gradients: Arrays, in_place: bool, eps: float = 1e-5) -> None:
        super().__init__(tensors, gradients, in_place)
        self._eps, self._normal = np.float32(eps), Buffer()
        self._weight, self._bias = (tensors[place] if len(tensors) > place else None for place in (0, 1))
        self._share = np.empty((0, 1), np.float32)  # [features, 1]: a product with it is a mean

    def forward(self, values: np.ndarray) -> np.ndarray:
        if len(self._share) != values.shape[-1]:
            self._share = np.full((values.shape[-1], 1), 1 / values.shape[-1], np.float32)
        normal = np.subtract(values, np.matmul(values, self._share), out=self._normal(values.shape))
        square = np.einsum("...i,...i->...", normal, normal)[..., None]  # [..., N, 1]
        self._inverse = ONE / np.sqrt(square / np.float32(len(self._share)) + self._eps)
        normal *= self._inverse
        self._result = normal
        if self._weight is None:
            return normal
        out = np.multiply(normal, self._weight, out=self._out(values.shape))
        return out if self._bias is None else np.add(out, self._bias, out=out)

    def backward(self, gradient: np.ndarray, rows: int | None, by_input: bool | slice) -> np.ndarray | None:
        count = gradient.shape[-2]
        normal, inverse = self._result[..., :count, :], self._inverse[..., :count, :]
        slopes = self._scratch(gradient.shape)
        if self._weight is not None:
            np.multiply(gradient, normal, out=slopes)
            single, summing = self._weight.ndim == 1, ones(count if rows is None else rows)
            summing = summing if single else summing[None]
            for found, terms in zip(self._gradients, (slopes, gradient), strict=False):
                np.matmul(summing, terms[..., :rows, :], out=found)
            column = self._weight[:, None] if single else self._weight.swapaxes(-1, -2)
            along = np.matmul(slopes, column) / np.float32(len(self._share))
            gradient *= self._weight
        else:
            along = np.einsum("...i,...i->...", gradient, normal)[..., None] / np.float32(len(self._share))
        gradient -= np.matmul(gradient, self._share)
        gradient -= np.multiply(normal, along, out=slopes)
        gradient *= inverse
        return gradient


class Dueling(Layer):
    """[N, 1 + n], a value and n advantages -> Q-values [N, n]: Q = V + A - mean A, Wang et al. 2016 (arXiv:1511.06581, eq. 9)."""

    def __init__(self, tensors: Arrays, gradients: Arrays, in_place: bool) -> None:
        super().__init__(tensors, gradients, in_place)
        self._mixing = np.empty((0, 0), np.float32)  # [1 + n, n]: a product with it takes a third of the time of means and sums

    def forward(self, values: np.ndarray) -> np.ndarray:
        actions = values.shape[-1] - 1
        if len(self._mixing) != 1 + actions:
            rows = np.ones((1, actions)), np.eye(actions) - 1 / actions
            self._mixing = np.concatenate(rows).astype(np.float32)
        return np.matmul(values, self._mixing, out=self._out((*values.shape[:-1], actions)))

    def backward(self, gradient: np.ndarray, rows: int | None, by_input: bool | slice) -> np.ndarray | None:
        return np.matmul(gradient, self._mixing.T, out=self._scratch((*gradient.shape[:-1], len(self._mixing))))


class Rescale(Layer):
    """Multiplies by a running scale."""

    def forward(self, values: np.ndarray) -> np.ndarray:
        return np.multiply(values, self._tensors[0], out=self._out(values.shape))

    def backward(self, gradient: np.ndarray, rows: int | None, by_input: bool | slice) -> np.ndarray | None:
        gradient *= self._tensors[0]
        return gradient


class LogStd(Layer):
    """Means [N, A] -> [N, 2A]: the means, and log-stds that do not depend on the observation."""

    trained = True

    def forward(self, values: np.ndarray) -> np.ndarray:
        count = values.shape[-1]
        out = self._out((*values.shape[:-1], 2 * count))
        out[..., :count] = values
        out[..., count:] = self._tensors[0]
        return out

    def backward(self, gradient: np.ndarray, rows: int | None, by_input: bool | slice) -> np.ndarray | None:
        actions = gradient.shape[-1] // 2
        gradient[:rows, actions:].sum(0, out=self._gradients[0])
        return gradient[..., :actions]


class Unflatten(Layer):
    """[N, features] -> [N, *sizes]."""

    def __init__(self, tensors: Arrays, gradients: Arrays, in_place: bool, sizes: Sequence[int] = ()) -> None:
        super().__init__(tensors, gradients, in_place)
        self._sizes = tuple(sizes)

    def forward(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(*values.shape[:-1], *self._sizes)

    def backward(self, gradient: np.ndarray, rows: int | None, by_input: bool | slice) -> np.ndarray | None:
        return gradient.reshape(*gradient.shape[: -len(self._sizes)], -1)


class MeanOverLast(Layer):
    """[N, n, M] -> [N, n]."""

    learns = False

    def forward(self, values: np.ndarray) -> np.ndarray:
        return values.mean(-1)


class SoftmaxExpectation(Layer):
    """Logits [N, n, M] of a distribution over M values -> its expectation [N, n], Bellemare et al. 2017 (arXiv:1707.06887)."""

    learns = False

    def forward(self, values: np.ndarray) -> np.ndarray:
        shares = np.exp(values - values.max(-1, keepdims=True))
        mean: np.ndarray = (shares @ self._tensors[0]) / shares.sum(-1)
        return mean


def sigmoid(values: np.ndarray, out: np.ndarray) -> np.ndarray:
    """By tanh, which cannot overflow."""
    np.multiply(values, np.float32(0.5), out=out)
    np.tanh(out, out=out)
    out += ONE
    out *= np.float32(0.5)
    return out


KINDS: dict[str, type[Layer]] = {
    "linear": Linear,
    "relu": Relu,
    "tanh": Tanh,
    "sigmoid": Sigmoid,
    "silu": Silu,
    "elu": Elu,
    "leaky_relu": LeakyRelu,
    "layer_norm": LayerNorm,
    "dueling": Dueling,
    "rescale": Rescale,
    "log_std": LogStd,
    "unflatten": Unflatten,
    "mean_over_last": MeanOverLast,
    "softmax_expectation": SoftmaxExpectation,
}
