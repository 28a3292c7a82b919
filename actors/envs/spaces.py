"""Gymnasium spaces as plain data, so that a policy can be used where its environment is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from actors.envs.errors import EnvError

Data = dict[str, Any]


def describe_space(space: spaces.Space) -> Data:
    """The space as JSON can hold it. Raises EnvError for a kind that an observation or action cannot be of."""
    if isinstance(space, spaces.Box):
        bounds = {"low": _numbers(space.low), "high": _numbers(space.high)}
        return {"kind": "box", "shape": list(space.shape), "dtype": space.dtype.str, **bounds}  # type: ignore[union-attr]
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "multidiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": space.dtype.str}  # type: ignore[union-attr]
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "multibinary", "n": int(space.n) if isinstance(space.n, int | np.integer) else list(space.shape)}
    if isinstance(space, spaces.Dict):
        return {"kind": "dict", "spaces": {name: describe_space(part) for name, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": "tuple", "spaces": [describe_space(part) for part in space.spaces]}
    raise EnvError(f"{type(space).__name__} spaces are not supported")


def read_space(data: Data) -> spaces.Space:
    """The space that `describe_space` has described. Raises EnvError for anything else."""
    try:
        return _read(data)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, OverflowError) as error:
        raise EnvError(f"not a description of a space: {error!r}") from error


def _read(data: Data) -> spaces.Space:
    kind = data["kind"]
    if kind == "box":
        dtype, shape = np.dtype(data["dtype"]), tuple(data["shape"])
        low, high = _bound(data["low"], -np.inf, shape, dtype), _bound(data["high"], np.inf, shape, dtype)
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "discrete":
        return spaces.Discrete(data["n"], start=data["start"])
    if kind == "multidiscrete":
        return spaces.MultiDiscrete(np.array(data["nvec"]), np.dtype(data["dtype"]).type, start=np.array(data["start"]))
    if kind == "multibinary":
        return spaces.MultiBinary(data["n"])
    if kind == "dict":
        return spaces.Dict({name: _read(part) for name, part in data["spaces"].items()})
    if kind == "tuple":
        return spaces.Tuple([_read(part) for part in data["spaces"]])
    raise ValueError(kind)


def _numbers(bound: np.ndarray) -> Any:
    """A bound as one number where all are the same, else as a flat list; None stands for infinite."""
    flat = [float(value) if np.isfinite(value) else None for value in bound.ravel().tolist()]
    return flat[0] if len(set(flat)) == 1 else flat


def _bound(numbers: Any, infinite: float, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    flat = [infinite if value is None else value for value in (numbers if isinstance(numbers, list) else [numbers])]
    values = np.array(flat, dtype)
    return np.full(shape, values[0], dtype) if len(values) == 1 else values.reshape(shape)
