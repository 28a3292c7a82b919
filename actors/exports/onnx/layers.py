"""The operations of programs as nodes of ONNX: what learner/program computes in numpy.

Vectors are [N, features]. Images are [N, channels, height, width] until they are flattened, other than in numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from actors.exports.onnx.graph import Graph
from learner.description import Op
from learner.program.convolutions import windows


class Value(NamedTuple):
    """The name of a value, and its shape without the axis of rows."""

    name: str
    shape: tuple[int, ...]


class Layers:
    """Adds the layers of one program to a graph."""

    def __init__(self, graph: Graph, tensors: Mapping[str, np.ndarray], state: Mapping[str, str]) -> None:
        """`state`: the names of the memory's state before the step, {column: value}."""
        self._graph, self._tensors, self._state = graph, tensors, state
        self.after: dict[str, Value] = {}  # the memory's state after the step

    def add(self, op: Op, value: Value) -> Value:
        """Raises KeyError for a kind that is not known."""
        return KINDS[op.kind](self, value, [self._tensor(name) for name in op.tensors], **op.options)

    def _tensor(self, name: str) -> Value:
        return Value(self._graph.constant(self._tensors[name], name=name), self._tensors[name].shape)

    def linear(self, value: Value, tensors: Sequence[Value], **options: Any) -> Value:
        weight, *bias = tensors
        names = [tensor.name for tensor in tensors]
        if len(weight.shape) == 2 and len(value.shape) > 1:  # of several rows each
            turned = self._graph.add("Transpose", weight.name, perm=[1, 0])
            product = self._graph.add("MatMul", value.name, turned)
            product = self._graph.add("Add", product, bias[0].name) if bias else product
            return Value(product, (*value.shape[:-1], weight.shape[0]))
        if len(weight.shape) == 2:
            return Value(self._graph.add("Gemm", value.name, *names, transB=1), weight.shape[:1])
        turned = self._graph.add("Transpose", weight.name, perm=[0, 2, 1])
        product = self._graph.add("MatMul", value.name, turned)
        if bias:
            product = self._graph.add("Add", product, bias[0].name)
        return Value(product, weight.shape[1:2])

    def elementwise(self, kind: str, value: Value, **attributes: Any) -> Value:
        return Value(self._graph.add(kind, value.name, **attributes), value.shape)

    def silu(self, value: Value, tensors: Sequence[Value]) -> Value:
        return Value(self._graph.add("Mul", value.name, self._graph.add("Sigmoid", value.name)), value.shape)

    def layer_norm(self, value: Value, tensors: Sequence[Value], eps: float = 1e-5) -> Value:
        single = all(len(tensor.shape) == 1 for tensor in tensors)
        scale = tensors[0].name if tensors and single else self._graph.constant(np.ones(value.shape[-1:], np.float32))
        rest = [tensor.name for tensor in tensors[1:]] if single else []
        name = self._graph.add("LayerNormalization", value.name, scale, *rest, axis=-1, epsilon=eps)
        if tensors and not single:
            for kind, tensor in zip(("Mul", "Add"), tensors, strict=False):
                name = self._graph.add(kind, name, tensor.name)
        return Value(name, value.shape)

    def dueling(self, value: Value, tensors: Sequence[Value]) -> Value:
        actions = value.shape[-1] - 1
        mixing = np.concatenate([np.ones((1, actions)), np.eye(actions) - 1 / actions]).astype(np.float32)
        return Value(self._graph.add("MatMul", value.name, self._graph.constant(mixing)), (*value.shape[:-1], actions))

    def rescale(self, value: Value, tensors: Sequence[Value]) -> Value:
        return Value(self._graph.add("Mul", value.name, tensors[0].name), value.shape)

    def log_std(self, value: Value, tensors: Sequence[Value]) -> Value:
        zeros = self._graph.add("Mul", value.name, self._graph.constant(np.float32(0)))
        spread = self._graph.add("Add", zeros, tensors[0].name)
        return Value(self._graph.add("Concat", value.name, spread, axis=-1), (2 * value.shape[0],))

    def unflatten(self, value: Value, tensors: Sequence[Value], sizes: Sequence[int] = ()) -> Value:
        known = int(np.prod([one for one in sizes if one != -1]))
        shape = tuple(int(np.prod(value.shape)) // known if one == -1 else one for one in sizes)
        return Value(self._graph.shaped(value.name, *shape), shape)

    def mean_over_last(self, value: Value, tensors: Sequence[Value]) -> Value:
        return Value(self._graph.add("ReduceMean", value.name, axes=[-1], keepdims=0), value.shape[:-1])

    def softmax_expectation(self, value: Value, tensors: Sequence[Value]) -> Value:
        shares = self._graph.add("Softmax", value.name, axis=-1)
        return Value(self._graph.add("MatMul", shares, tensors[0].name), value.shape[:-1])

    def convolution(
        self,
        value: Value,
        tensors: Sequence[Value],
        shape: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        stored: Sequence[float] | None = None,
    ) -> Value:
        name = value.name
        if stored:
            scale, offset = stored
            name = self._graph.shaped(self._graph.cast(name, np.float32), *shape)
            name = self._graph.add("Mul", name, self._graph.constant(np.float32(scale)))
            if offset:
                name = self._graph.add("Add", name, self._graph.constant(np.float32(offset)))
        filters, _, *kernel = tensors[0].shape
        options = {"strides": list(stride), "pads": [*padding, *padding], "kernel_shape": kernel}
        name = self._graph.add("Conv", name, *(tensor.name for tensor in tensors), **options)
        return Value(name, (filters, *windows(shape[1:], kernel, stride, padding)))

    def channels_first(self, value: Value, tensors: Sequence[Value], channels: int) -> Value:
        return Value(self._graph.add("Flatten", value.name, axis=1), (int(np.prod(value.shape)),))

    def batch_norm(self, value: Value, tensors: Sequence[Value], eps: float) -> Value:
        names = [tensor.name for tensor in tensors[:4]]
        return Value(self._graph.add("BatchNormalization", value.name, *names, epsilon=eps), value.shape)

    def group_norm(self, value: Value, tensors: Sequence[Value], eps: float) -> Value:
        one, zero = self._graph.constant(np.ones(1, np.float32)), self._graph.constant(np.zeros(1, np.float32))
        flat = self._graph.shaped(value.name, 1, int(np.prod(value.shape)))
        name = self._graph.add("InstanceNormalization", flat, one, zero, epsilon=eps)
        name = self._graph.shaped(name, *value.shape)
        for kind, tensor in zip(("Mul", "Add"), tensors, strict=True):
            column = self._graph.constant(self._tensors[tensor.name].reshape(-1, 1, 1))
            name = self._graph.add(kind, name, column)
        return Value(name, value.shape)

    def lstm(self, value: Value, tensors: Sequence[Value]) -> Value:
        size = tensors[1].shape[1]
        given, kept = self._gates(value, tensors)
        parts = self._parts(self._graph.add("Add", given, kept), size, 4)
        take, forget, new, show = (
            self._graph.add(kind, part) for kind, part in zip(("Sigmoid", "Sigmoid", "Tanh", "Sigmoid"), parts, strict=True)
        )
        remembered = self._graph.add("Mul", forget, self._state["memory/c"])
        cell = self._graph.add("Add", remembered, self._graph.add("Mul", take, new))
        hidden = self._graph.add("Mul", show, self._graph.add("Tanh", cell))
        self.after |= {"memory/h": Value(hidden, (size,)), "memory/c": Value(cell, (size,))}
        return Value(hidden, (size,))

    def gru(self, value: Value, tensors: Sequence[Value]) -> Value:
        """h' = n + z (h - n), n = tanh(given + r kept): the reset gate multiplies what comes from the state alone."""
        size = tensors[1].shape[1]
        given, kept = (self._parts(gates, size, 3) for gates in self._gates(value, tensors))
        reset, update = (self._graph.add("Sigmoid", self._graph.add("Add", given[gate], kept[gate])) for gate in (0, 1))
        new = self._graph.add("Tanh", self._graph.add("Add", given[2], self._graph.add("Mul", reset, kept[2])))
        change = self._graph.add("Mul", update, self._graph.add("Sub", self._state["memory/h"], new))
        hidden = self._graph.add("Add", new, change)
        self.after["memory/h"] = Value(hidden, (size,))
        return Value(hidden, (size,))

    def _gates(self, value: Value, tensors: Sequence[Value]) -> tuple[str, str]:
        """The parts of all gates that come from the features and from the state."""
        weight, recurrent, bias, other = (tensor.name for tensor in tensors)
        given = self._graph.add("Gemm", value.name, weight, bias, transB=1)
        return given, self._graph.add("Gemm", self._state["memory/h"], recurrent, other, transB=1)

    def _parts(self, value: str, size: int, count: int) -> list[str]:
        return [self._graph.part(value, start * size, (start + 1) * size) for start in range(count)]


def _elementwise(kind: str) -> Callable[..., Value]:
    def add(layers: Layers, value: Value, tensors: Sequence[Value], **attributes: Any) -> Value:
        return layers.elementwise(kind, value, **attributes)

    return add


KINDS: dict[str, Callable[..., Value]] = {
    "linear": Layers.linear,
    "relu": _elementwise("Relu"),
    "tanh": _elementwise("Tanh"),
    "sigmoid": _elementwise("Sigmoid"),
    "silu": Layers.silu,
    "elu": _elementwise("Elu"),
    "leaky_relu": lambda layers, value, tensors, slope=0.01: layers.elementwise("LeakyRelu", value, alpha=slope),
    "layer_norm": Layers.layer_norm,
    "dueling": Layers.dueling,
    "rescale": Layers.rescale,
    "log_std": Layers.log_std,
    "unflatten": Layers.unflatten,
    "mean_over_last": Layers.mean_over_last,
    "softmax_expectation": Layers.softmax_expectation,
    "convolution": Layers.convolution,
    "channels_first": Layers.channels_first,
    "batch_norm": Layers.batch_norm,
    "group_norm": Layers.group_norm,
    "lstm": Layers.lstm,
    "gru": Layers.gru,
}
