"""Plain observations as stored fields in ONNX: what actors/envs/spec.py and columns do in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from actors.envs.spec import channels_last, integer_range, is_image
from actors.exports.onnx.graph import Graph
from transport.experience import Column

Space = gymnasium.Space[Any]


def input_type(space: Space) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The type and the shape of a part of an observation, as an input takes it: integers are int64, or uint8 where the space is;
    all others float32."""
    kind = np.dtype(space.dtype)
    dtype = kind if kind == np.uint8 else np.dtype(np.int64) if kind.kind in "iu" else np.dtype(np.float32)
    return dtype, tuple(space.shape or ())


def stored(graph: Graph, name: str, space: Space, field: Column) -> str:
    """Adds the input `name`; the value [N, *field.shape] as it is stored."""
    dtype, shape = input_type(space)
    value = graph.input(name, dtype, shape)
    if is_image(space):
        value = _image(graph, value, space, field)  # type: ignore[arg-type]
        return value if dtype.kind in "iu" else encoded(graph, value, field)
    if isinstance(space, spaces.Discrete):
        value = _one_hot(graph, value, int(space.n), int(space.start))
    elif isinstance(space, spaces.MultiDiscrete):
        value = _one_hots(graph, value, space)
    else:
        value = graph.shaped(graph.cast(value, np.float32), *field.shape)
    return encoded(graph, value, field)


def encoded(graph: Graph, value: str, field: Column) -> str:
    """Column.encode."""
    dtype = np.dtype(field.dtype)
    if not field.quantised or dtype.kind not in "iu":
        return graph.cast(value, dtype)
    value = graph.add("Sub", graph.cast(value, np.float64), graph.constant(field.offset, np.float64))
    value = graph.add("Round", graph.add("Div", value, graph.constant(field.scale, np.float64)))
    limits = np.iinfo(dtype)
    value = graph.add("Clip", value, graph.constant(limits.min, np.float64), graph.constant(limits.max, np.float64))
    return graph.cast(value, dtype)


def decoded(graph: Graph, value: str, field: Mapping[str, Any]) -> str:
    """Stored values as float32, by `scale` and `offset`."""
    value = graph.cast(value, np.float32)
    for kind, number, neutral in (("Mul", field["scale"], 1.0), ("Add", field["offset"], 0.0)):
        if number != neutral:
            value = graph.add(kind, value, graph.constant(number, np.float32))
    return value


def _image(graph: Graph, value: str, space: spaces.Box, field: Column) -> str:
    """The stored pixels of a uint8 or float image, or the numbers that become them; [N, *field.shape]."""
    if space.dtype is not None and space.dtype.kind in "iu" and space.dtype != np.uint8:
        low, width = integer_range(space)
        value = graph.add("Sub", value, graph.constant(low, np.int64))
        value = graph.add("Clip", value, graph.constant(0, np.int64), graph.constant(width, np.int64))
        if width > 255:
            value = graph.add("Div", graph.add("Mul", value, graph.constant(255, np.int64)), graph.constant(width, np.int64))
        value = graph.cast(value, np.uint8)
    if channels_last(space.shape):
        axes = range(len(space.shape) + 1)
        *before, height, across, channels = axes
        value = graph.add("Transpose", value, perm=[*before, channels, height, across])
    return graph.shaped(value, *field.shape)


def _one_hot(graph: Graph, value: str, n: int, start: int) -> str:
    """[N] -> [N, n] float32."""
    if start:
        value = graph.add("Sub", value, graph.constant(start, np.int64))
    return graph.add("OneHot", value, graph.constant(n, np.int64), graph.constant([0, 1], np.float32), axis=-1)


def _one_hots(graph: Graph, value: str, space: spaces.MultiDiscrete) -> str:
    value = graph.add("Sub", value, graph.constant(space.start, np.int64))
    sizes = space.nvec.ravel().tolist()
    value = graph.shaped(value, len(sizes))
    parts = [
        graph.shaped(_one_hot(graph, graph.shaped(graph.part(value, place, place + 1)), size, 0), size)
        for place, size in enumerate(sizes)
    ]
    return graph.add("Concat", *parts, axis=-1)
