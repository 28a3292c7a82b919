"""The forward pass of a described policy in numpy.

In a small network most of torch's time is overhead per operation: for the few rows of an actor's step numpy takes a tenth of it.
A program is a stack machine: each op takes arrays from the stack and pushes its result. Arrays are [features, K], one column per
environment, so that W x needs no transposed copy of W.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from learner.description import Op, PolicyDescription
from learner.inference.memories import MEMORIES, Cell
from transport.experience import Columns

CLIP, NEAR, EPSILON = 10.0, 1 / 8, 1e-8  # as learner/networks/inputs.py has them
Weights = Mapping[str, np.ndarray]
Change = Callable[[np.ndarray], np.ndarray]


class Chain:
    """A source of an array, and the operations that are applied to it in order."""

    def __init__(self, source: Callable[[], np.ndarray]) -> None:
        self._source, self.changes = source, list[Change]()

    def __call__(self) -> np.ndarray:
        values = self._source()
        for change in self.changes:
            values = change(values)
        return values


class Program:
    """Inference by numpy alone."""

    def __init__(self, description: PolicyDescription) -> None:
        assert description.program is not None
        self._description = description
        self.state: Mapping[str, tuple[int, ...]] = description.state
        self._weights = {name: np.zeros(shape, dtype) for name, (shape, dtype) in description.tensors.items()}
        first, *others = description.program
        self._inputs = ProgramInputs([self._weights[name] for name in first.tensors], **first.options)
        self._memories: list[Cell] = []
        self._before: Columns = {}
        self._after: Columns = {}
        stack: list[Chain] = []
        for op, before in zip(others, description.program, strict=False):
            self._compile(op, before, stack)
        (self._answer,) = stack

    @property
    def weights(self) -> Weights:
        return self._weights

    def load(self, weights: Weights) -> None:
        self._description.check(weights)
        for name, mine in self._weights.items():
            mine[...] = weights[name]
        for memory in self._memories:
            memory.refresh()

    def __call__(self, observation: Columns, state: Columns) -> tuple[np.ndarray, Columns]:
        self._inputs.read(observation)
        self._before, self._after = state, {}
        return self._answer().T, self._after

    def _compile(self, op: Op, before: Op, stack: list[Chain]) -> None:
        tensors = [self._weights[name] for name in op.tensors]
        if op.kind == "push":
            stack.append(Chain(partial(self._inputs.columns, op.options["names"])))
        elif op.kind == "concat":
            parts = stack[-op.options["count"] :]
            stack[-len(parts) :] = [Chain(lambda: np.concatenate([part() for part in parts]))]
        elif op.kind in MEMORIES:
            self._memories.append(MEMORIES[op.kind](*tensors))
            stack[-1].changes.append(partial(self._remember, self._memories[-1]))
        else:
            if op.kind in IN_PLACE and before.kind in ("push", *MEMORIES):
                stack[-1].changes.append(np.copy)  # neither the observation nor a memory's state may be modified
            stack[-1].changes.append(OPS[op.kind](*tensors, **op.options))

    def _remember(self, cell: Cell, values: np.ndarray) -> np.ndarray:
        values, after = cell(values, self._before)
        self._after |= after
        return values


class ProgramInputs:
    """Computes what Inputs of learner/networks/inputs.py computes.

    `fields`: name, shape, scale and offset of each field; `goal`: the names of achieved and desired goal, or empty. `tensors`:
    count, mean and variance of the normaliser, or empty.
    """

    def __init__(self, tensors: Sequence[np.ndarray], fields: list[dict[str, Any]], stack: int, goal: list[str]) -> None:
        self._stack, self._goal, self._statistics = stack, goal, tensors
        self._decoders = [(field["name"], _decoder(field["scale"], field["offset"])) for field in fields]
        self._sizes = {field["name"]: math.prod(field["shape"]) for field in fields}
        if goal:
            self._sizes["goal/way"] = self._sizes[goal[1]]
            if tensors:
                self._sizes["goal/near"] = self._sizes[goal[1]]
        ends = np.cumsum(list(self._sizes.values())).tolist()
        self._places = {name: slice(end - size, end) for (name, size), end in zip(self._sizes.items(), ends, strict=True)}
        self._rows = np.empty(0, np.float32)  # [K, stack, features]

    def read(self, observation: Columns) -> None:
        """Reads observations [K, stack, *shape] as stored."""
        parts = {name: decode(observation[name]) for name, decode in self._decoders}
        if self._goal:
            achieved, desired = self._goal
            parts["goal/way"] = parts[desired] - parts[achieved]
        if len(parts) == 1 and not self._statistics:  # may be the observation itself, which is not modified here
            (self._rows,) = parts.values()
            return
        self._rows = np.concatenate(list(parts.values()), 2)
        if self._statistics:
            self._normalise()

    def _normalise(self) -> None:
        count, mean, variance = self._statistics
        values = self._rows
        near = self._near(values, count, variance)
        if count > 0:
            values -= mean
            values /= np.sqrt(variance + np.float32(EPSILON))
            values.clip(-CLIP, CLIP, out=values)
        self._rows = values if near is None else np.concatenate([values, near], 2)

    def _near(self, values: np.ndarray, count: np.ndarray, variance: np.ndarray) -> np.ndarray | None:
        """The rescaled goal difference, [K, stack, size]."""
        if not self._goal:
            return None
        size = self._sizes["goal/way"]
        usual = np.sqrt(variance[-size:].mean()) if count > 0 else np.float32(1.0)
        way = values[..., -size:]
        near: np.ndarray = way / (np.linalg.norm(way, axis=2, keepdims=True) + np.float32(NEAR) * usual + np.float32(EPSILON))
        return near

    def columns(self, names: Sequence[str]) -> np.ndarray:
        """The inputs of these names, each with its stack folded in, concatenated: [features, K]."""
        count = len(self._rows)
        if len(names) == len(self._places) and (self._stack == 1 or len(self._places) == 1):
            return self._rows.reshape(count, -1).T
        parts = [self._rows[:, :, self._places[name]].reshape(count, -1) for name in names]
        return (parts[0] if len(parts) == 1 else np.concatenate(parts, 1)).T


def _decoder(scale: float, offset: float) -> Change:
    """[K, stack, *shape] as stored -> [K, stack, size] float32."""
    factor, summand = np.float32(scale), np.float32(offset)
    quantised = scale != 1.0 or offset != 0.0

    def decode(stored: np.ndarray) -> np.ndarray:
        values = stored.reshape(*stored.shape[:2], -1).astype(np.float32, copy=quantised)
        if scale != 1.0:
            values *= factor
        if offset != 0.0:
            values += summand
        return values

    return decode


def _linear(weight: np.ndarray, bias: np.ndarray | None = None) -> Change:
    if bias is None:
        return lambda values: weight @ values
    column = bias[:, None]

    def apply(values: np.ndarray) -> np.ndarray:
        answer: np.ndarray = weight @ values
        answer += column
        return answer

    return apply


def _layer_norm(weight: np.ndarray | None = None, bias: np.ndarray | None = None, *, eps: float) -> Change:
    def apply(values: np.ndarray) -> np.ndarray:
        centred = values - values.mean(0)
        scaled: np.ndarray = centred / np.sqrt(np.square(centred).mean(0) + np.float32(eps))
        if weight is not None:
            scaled *= weight[:, None]
        if bias is not None:
            scaled += bias[:, None]
        return scaled

    return apply


def _dueling() -> Change:
    def apply(output: np.ndarray) -> np.ndarray:
        value, advantage = output[0], output[1:]
        q: np.ndarray = value + advantage - advantage.mean(0)
        return q

    return apply


def _rescale(scale: np.ndarray) -> Change:
    return lambda values: values * scale


def _log_std(log_std: np.ndarray) -> Change:
    return lambda mean: np.concatenate([mean, np.broadcast_to(log_std[:, None], mean.shape)])


def _unflatten(sizes: list[int]) -> Change:
    return lambda values: values.reshape(*sizes, values.shape[-1])


def _mean_over_last() -> Change:
    return lambda values: values.mean(1)


def _softmax_expectation(support: np.ndarray) -> Change:
    def apply(logits: np.ndarray) -> np.ndarray:
        shares = np.exp(logits - logits.max(1, keepdims=True))  # [n, M, K]
        mean: np.ndarray = np.einsum("nmk,m->nk", shares, support) / shares.sum(1)
        return mean

    return apply


def _elementwise(change: Change) -> Callable[[], Change]:
    return lambda: change


def _sigmoid(values: np.ndarray) -> np.ndarray:
    half: np.ndarray = 0.5 * (1 + np.tanh(0.5 * values))  # cannot overflow
    return half


# Kind -> factory of the operation, called with the op's tensors and options.
OPS: dict[str, Callable[..., Change]] = {
    "linear": _linear,
    "relu": _elementwise(lambda values: np.maximum(values, 0, out=values)),
    "tanh": _elementwise(lambda values: np.tanh(values, out=values)),
    "sigmoid": _elementwise(_sigmoid),
    "silu": _elementwise(lambda values: values * _sigmoid(values)),
    "elu": lambda alpha: lambda values: np.where(values > 0, values, alpha * np.expm1(np.minimum(values, 0))),
    "leaky_relu": lambda slope: lambda values: np.where(values > 0, values, slope * values),
    "layer_norm": _layer_norm,
    "dueling": _dueling,
    "rescale": _rescale,
    "log_std": _log_std,
    "unflatten": _unflatten,
    "mean_over_last": _mean_over_last,
    "softmax_expectation": _softmax_expectation,
}
IN_PLACE = ("relu", "tanh")
