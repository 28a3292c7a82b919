"""Stored observations as the rows that a network reads: what learner/networks/inputs.py computes, in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transport.experience import Columns

CLIP, NEAR, EPSILON = 10.0, 1 / 8, 1e-8  # as learner/networks/inputs.py has them


class Inputs:
    """Decodes, adds the goal difference, normalises, folds stacks in.

    `fields`: name, shape, scale and offset of each field; `goal`: the names of achieved and desired goal, or empty. `tensors`:
    count, mean and variance of the normaliser, or empty.
    """

    def __init__(self, tensors: Sequence[np.ndarray], fields: list[dict[str, Any]], stack: int, goal: list[str]) -> None:
        self._stack, self._goal, self.statistics = stack, goal, tensors
        self._decoders = [(field["name"], _decoder(field["scale"], field["offset"])) for field in fields]
        sizes = {field["name"]: math.prod(field["shape"]) for field in fields}
        if goal:
            sizes["goal/way"] = sizes[goal[1]]
        self.observed = sum(sizes.values())  # features of a row that are normalised
        if goal and tensors:
            sizes["goal/near"] = sizes[goal[1]]
        self.features = sum(sizes.values())  # of a row
        self._places = _places(sizes, 1)  # in a row
        self.places: Mapping[str, slice] = _places(sizes, stack)  # of the network's inputs, in what flat() returns

    def read(self, observation: Columns) -> np.ndarray:
        """Observations {name: [N, stack, *shape]} as stored -> [N, stack * features], which may be the observation itself."""
        return self.flat(self.rows(observation))

    def rows(self, observation: Columns) -> np.ndarray:
        """{name: [N, rows, *shape]} as stored -> [N, rows, features] float32, for any number of rows. It may be the observation
        itself."""
        if not self.statistics:
            return self.raw(observation)
        count, mean, variance = self.statistics
        values = self.raw(observation, copied=True)
        near = self._near(values, count, variance)
        if count > 0:
            values -= mean
            values /= np.sqrt(variance + np.float32(EPSILON))
            values.clip(-CLIP, CLIP, out=values)
        return values if near is None else np.concatenate([values, near], 2)

    def raw(self, observation: Columns, copied: bool = False) -> np.ndarray:
        """As rows(), before normalisation. `copied`: it shares no memory with the observation."""
        parts = {name: decode(observation[name]) for name, decode in self._decoders}
        if self._goal:
            achieved, desired = self._goal
            parts["goal/way"] = parts[desired] - parts[achieved]
        if len(parts) > 1:
            return np.concatenate(list(parts.values()), 2)
        (only,) = parts.values()
        return np.array(only) if copied else only

    def flat(self, rows: np.ndarray) -> np.ndarray:
        """Rows with their stacks [N, stack, features] -> [N, stack * features], one input after the other, as `places` says."""
        count = len(rows)
        if self._stack == 1 or len(self._places) == 1:
            return rows.reshape(count, -1)
        return np.concatenate([rows[:, :, place].reshape(count, -1) for place in self._places.values()], 1)

    def _near(self, values: np.ndarray, count: np.ndarray, variance: np.ndarray) -> np.ndarray | None:
        """The rescaled goal difference, [N, rows, size]."""
        if not self._goal:
            return None
        place = self._places["goal/way"]
        usual = np.sqrt(variance[place].mean()) if count > 0 else np.float32(1.0)
        way = values[..., place]
        near: np.ndarray = way / (np.linalg.norm(way, axis=2, keepdims=True) + np.float32(NEAR) * usual + np.float32(EPSILON))
        return near


def _places(sizes: Mapping[str, int], stack: int) -> dict[str, slice]:
    ends = np.cumsum([size * stack for size in sizes.values()]).tolist()
    return {name: slice(end - size * stack, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}


def _decoder(scale: float, offset: float) -> Callable[[np.ndarray], np.ndarray]:
    """[N, rows, *shape] as stored -> [N, rows, size] float32."""
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
