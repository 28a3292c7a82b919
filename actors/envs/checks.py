"""Whether an environment gives what its spaces declare. Each complaint is an EnvError of one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from actors.envs.errors import EnvError
from actors.envs.spec import flatten_observation, leaves
from transport.experience import Column

ROUNDING = 1e-3  # of a bound: what a value may lie beyond it


def read_observation(phase: str, space: spaces.Space, fields: Sequence[Column], observation: Any) -> dict[str, np.ndarray]:
    """{field name: values of the field's shape}. Raises EnvError for another structure or shape than the space's."""
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


def check_observation(phase: str, space: spaces.Space, fields: Sequence[Column], observation: Any) -> None:
    """Everything that is declared and matters: too slow for every step. Raises EnvError.

    Bounds matter where they decide what is stored (env.quantise). Elsewhere many an environment strays from what it declares, and
    nothing comes of it.
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
            "declare the bounds that it has, or leave env.quantise off"
        )


def check_reward(reward: Any) -> None:
    """A reward is one number that float32 can hold. Raises EnvError."""
    try:
        fine = np.ndim(reward) == 0 and abs(float(reward)) <= float(np.finfo(np.float32).max)  # neither is NaN
    except (TypeError, ValueError):
        fine = False
    if not fine:
        hint = ": return float(reward)" if np.size(reward) == 1 and np.ndim(reward) else ""
        raise EnvError(f"step gave the reward {reward!r}; it must be one finite number{hint}")
