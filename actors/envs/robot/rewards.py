"""What reaching is worth: pure functions of goals, for any number of them at once.

sparse  0 within the tolerance, -1 elsewhere (as in Gymnasium-Robotics' Fetch).
dense   0 within the tolerance; elsewhere -(d + 0.25 d / (d + 0.05)), d the distance in metres: the first part says which way, the
        second steepens near the target, where it is five times the first, so that the last centimetres are worth their while.

No reward is above 0, so reaching the target and ending the episode is best: the bonus for success is that the cost ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

REWARDS = ("dense", "sparse")
NEAR_METRES = 0.05
NEAR_WEIGHT = 0.25


def distance(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    """[…] metres between goals […, 3]."""
    return np.asarray(np.linalg.norm(np.asarray(achieved, np.float64) - np.asarray(desired, np.float64), axis=-1))


def reward(kind: str, apart: np.ndarray, tolerance: np.ndarray | float) -> np.ndarray:
    """[…] float32, of distances […] and the tolerance, in metres, that they are compared with."""
    outside = apart > tolerance
    if kind == "sparse":
        return np.where(outside, -1.0, 0.0).astype(np.float32)
    cost = apart + NEAR_WEIGHT * apart / (apart + NEAR_METRES)
    return np.where(outside, -cost, 0.0).astype(np.float32)


def tolerance_of(info: Any, default: float) -> np.ndarray | float:
    """The tolerance of an episode, where `info` (of one step, or a sequence of such) says so."""
    if isinstance(info, Mapping):
        return float(info.get("tolerance", default))
    if isinstance(info, Sequence | np.ndarray):
        return np.array([tolerance_of(one, default) for one in info])
    return default
