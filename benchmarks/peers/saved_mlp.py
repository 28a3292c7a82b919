"""A deterministic policy as a file: what scales the observation, and the layers. Needs numpy alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

CLIP = 10.0  # of scaled observations, on both sides
EPSILON = 1e-8


class Saved(NamedTuple):
    """The tanh layers as (weight [out, in], bias [out]), the last one without tanh; after how many environment steps; and the
    success rate of the last training episodes."""

    mean: np.ndarray
    variance: np.ndarray
    layers: list[tuple[np.ndarray, np.ndarray]]
    steps: int
    success: float

    def act(self, observation: np.ndarray) -> np.ndarray:
        """[K, features] as the environment gives them -> the likeliest actions [K, A], within -1 and 1."""
        value = np.clip((observation - self.mean) / np.sqrt(self.variance + EPSILON), -CLIP, CLIP)
        for number, (weight, bias) in enumerate(self.layers):
            value = (value if number == 0 else np.tanh(value)) @ weight.T + bias
        return np.clip(value, -1.0, 1.0)

    def write(self, path: Path) -> None:
        """Whole or not at all: another process may be waiting for it."""
        named: dict[str, Any] = {"figures": np.array([self.steps, self.success])}
        for k, (weight, bias) in enumerate(self.layers):
            named |= {f"w{k}": weight, f"b{k}": bias}
        temporary = path.with_suffix(".part")
        with open(temporary, "wb") as file:
            np.savez(file, mean=self.mean, variance=self.variance, **named)
        os.replace(temporary, path)


def load(path: Path) -> Saved:
    """What write() wrote."""
    with np.load(path, allow_pickle=False) as file:
        layers = [(file[f"w{k}"], file[f"b{k}"]) for k in range(sum(name.startswith("w") for name in file.files))]
        steps, success = file["figures"]
        return Saved(file["mean"], file["variance"], layers, int(steps), float(success))
