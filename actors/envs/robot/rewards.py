"""The rewards of reaching: pure functions of goals, for any number of them at once.

sparse  0 within the tolerance, -1 elsewhere (as in Gymnasium-Robotics' Fetch).
dense   0 within the tolerance; elsewhere -(d + 0.25 d / (d + 0.01)), d the distance in metres. The first term has the same slope
        at all distances. The second term is steep near the target, so that the last millimetres count.

No reward is above 0, so the best return is that of reaching the target soon and ending the episode; there is no success bonus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

REWARDS = ("dense", "sparse")
NEAR_METRES = 0.01
NEAR_WEIGHT = 0.25


def distance(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    """[…] distances in metres between goals […, 3]."""
    return np.asarray(np.linalg.norm(np.asarray(achieved, np.float64) - np.asarray(desired, np.float64), axis=-1))


def reward(kind: str, distance: np.ndarray, tolerance: np.ndarray | float) -> np.ndarray:
    """[…] float32 rewards for distances […] and tolerances […], in metres."""
    outside = distance > tolerance
    if kind == "sparse":
        return np.where(outside, -1.0, 0.0).astype(np.float32)
    cost = distance + NEAR_WEIGHT * distance / (distance + NEAR_METRES)
    return np.where(outside, -cost, 0.0).astype(np.float32)


def tolerance_of(info: Any, default: float) -> np.ndarray | float:
    """The tolerance in `info`, which is the info of one step or a sequence of infos; `default` where it has none."""
    if isinstance(info, Mapping):
        return float(info.get("tolerance", default))
    if isinstance(info, Sequence | np.ndarray):
        return np.array([tolerance_of(one, default) for one in info])
    return default
