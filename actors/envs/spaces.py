"""Gymnasium spaces as plain data, so that a policy can be used where its environment is not installed; and checks that an
environment's observations and rewards match what it declares. Each error is an EnvError with one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from msgspec import Struct

from actors.envs.spec import flatten_observation, is_text, leaves
from actors.errors import EnvError
from transport.experience import Column
from transport.files.documents import decode

Data = dict[str, Any]
ROUNDING = 1e-3  # relative to a bound: a value may exceed it by this much


def describe_space(space: spaces.Space) -> Data:
    """The space in a form that fits JSON. Raises EnvError for a kind that is not supported."""
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
        parts = {name: part for name, part in space.spaces.items() if not is_text(part)}
        if all(isinstance(name, str) for name in parts):
            return {"kind": "dict", "spaces": {name: describe_space(part) for name, part in parts.items()}}
        return {"kind": "dict", "entries": [[_key(name), describe_space(part)] for name, part in parts.items()]}
    if isinstance(space, spaces.Tuple):
        return {"kind": "tuple", "spaces": [describe_space(part) for part in space.spaces]}
    raise EnvError(f"{type(space).__name__} spaces are not supported")


def read_space(data: Data) -> spaces.Space:
    """The inverse of `describe_space`. Raises EnvError for other data."""
    try:
        return _read(data)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, OverflowError) as error:
        raise EnvError(f"not a description of a space: {error!r}") from error


class Spaces(Struct, frozen=True):
    """spaces.json."""

    observation: Data
    action: Data


def read_spaces(text: str | bytes) -> tuple[spaces.Space, spaces.Space]:
    """The spaces of observation and action in spaces.json. Raises EnvError, Damaged."""
    found = decode(text, Spaces)
    return read_space(found.observation), read_space(found.action)


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
        entries = data["entries"] if "entries" in data else data["spaces"].items()
        return spaces.Dict({name: _read(part) for name, part in entries})
    if kind == "tuple":
        return spaces.Tuple([_read(part) for part in data["spaces"]])
    raise ValueError(kind)


def _key(name: Any) -> str | int:
    """A key of a Dict space for JSON: a text or a whole number. Raises EnvError for any other."""
    if isinstance(name, str):
        return name
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return int(name)
    raise EnvError(f"a Dict space with the key {name!r} is not supported: take a text or a whole number")


def _numbers(bound: np.ndarray) -> Any:
    """A bound as one number if all entries are equal, else as a flat list. None means infinite."""
    exact = int if bound.dtype.kind in "iu" else float  # the greatest int64 is no float
    flat = [exact(value) if np.isfinite(value) else None for value in bound.ravel().tolist()]
    return flat[0] if len(set(flat)) == 1 else flat


def _bound(numbers: Any, infinite: float, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    flat = [infinite if value is None else value for value in (numbers if isinstance(numbers, list) else [numbers])]
    values = np.array(flat, dtype)
    return np.full(shape, values[0], dtype) if len(values) == 1 else values.reshape(shape)


def read_observation(phase: str, space: spaces.Space, fields: Sequence[Column], observation: Any) -> dict[str, np.ndarray]:
    """{field name: values of the field's shape}. Raises EnvError for a structure or shape that differs from the space's."""
    try:
        values = flatten_observation(space, observation)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise EnvError(
            f"{phase} gave an observation that its observation_space does not describe ({type(error).__name__}: {error})"
        ) from error
    for field in fields:
        if values[field.name].shape != field.shape:
            raise EnvError(
                f"{phase} gave {field.name} of shape {values[field.name].shape}; its observation_space says {field.shape}"
            )
    return values


def check_observation(phase: str, space: spaces.Space, fields: Sequence[Column], observation: Any) -> dict[str, np.ndarray]:
    """Checks structure, shape, type and bounds; too slow for every step. Gives what read_observation gives. Raises EnvError.

    Bounds are only checked where they decide what is stored (env.quantise): many environments exceed their bounds, which does no
    harm elsewhere.
    """
    values = read_observation(phase, space, fields, observation)
    for field in fields:
        if not np.isfinite(values[field.name]).all():
            raise EnvError(f"{phase} gave {field.name} with a value that is not finite")
    bounded = {field.name for field in fields if field.dtype == "|u1"}
    for name, leaf, value in leaves(space, observation):
        if isinstance(leaf, spaces.Box):
            _check_dtype(f"{phase} gave {name}", leaf, np.asarray(value))
            if name in bounded:
                _check_bounds(f"{phase} gave {name}", leaf, np.asarray(value))
    return values


def _check_dtype(gave: str, space: spaces.Box, value: np.ndarray) -> None:
    assert space.dtype is not None
    if space.dtype.kind in "iub" and value.dtype.kind not in "iub":
        raise EnvError(f"{gave} of {value.dtype}; its observation_space says {space.dtype}")


def _check_bounds(gave: str, space: spaces.Box, value: np.ndarray) -> None:
    value, low, high = (array.astype(np.float64).reshape(space.shape) for array in (value, space.low, space.high))
    with np.errstate(invalid="ignore"):  # infinite bounds
        beyond = (value < low - ROUNDING * np.maximum(1, np.abs(low))) | (value > high + ROUNDING * np.maximum(1, np.abs(high)))
    if beyond.any():
        place = tuple(int(index) for index in np.argwhere(beyond)[0])
        where = f"[{', '.join(map(str, place))}]" if place else ""
        raise EnvError(
            f"{gave}{where} = {value[place]:g}; its observation_space says {low[place]:g} to {high[place]:g}: "
            "declare the true bounds, or leave env.quantise off"
        )


def check_step(outcome: Any) -> None:
    """Raises EnvError if `step` does not follow Gymnasium's API."""
    if not (isinstance(outcome, tuple) and len(outcome) == 5):
        size = f"{len(outcome)} values" if isinstance(outcome, tuple) else type(outcome).__name__
        old = "; that is the old Gym API: `terminated` and `truncated` are two values now" if size == "4 values" else ""
        raise EnvError(f"step must return (observation, reward, terminated, truncated, info), not {size}{old}")
    if not isinstance(outcome[4], dict):
        raise EnvError(f"step must return a dict as info, not {kind(outcome[4])}")
    read_flag("terminated", outcome[2])
    read_flag("truncated", outcome[3])


def read_flag(name: str, value: Any) -> bool:
    """A flag that step returned, as a bool. Raises EnvError for another value, such as the text "False"."""
    if type(value) is bool:
        return value
    number = isinstance(value, np.bool_ | np.number | np.ndarray | int | float) and np.ndim(value) == 0
    if not (number and value in (0, 1)):
        raise EnvError(f"step gave {name} = {value!r:.40}; it must be True or False")
    return bool(value)


def kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def check_reward(reward: Any) -> None:
    """Raises EnvError unless the reward is one number that fits float32."""
    try:
        fine = np.ndim(reward) == 0 and abs(float(reward)) <= float(np.finfo(np.float32).max)  # neither is NaN
    except (TypeError, ValueError):
        fine = False
    if not fine:
        hint = ": return float(reward)" if np.size(reward) == 1 and np.ndim(reward) else ""
        raise EnvError(f"step gave the reward {reward!r}; it must be one finite number{hint}")
