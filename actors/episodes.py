"""Episodes that have ended, and figures over several of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

LARGEST_SCORE = float(np.finfo(np.float32).max)  # as of rewards, so that the mean of many is finite, too


class Episode(NamedTuple):
    """An episode that has ended. `score` is the environment's own figure, or total_reward if it has no usable one."""

    env: int
    total_reward: float
    length: int
    score: float
    success: bool | None  # None: the environment does not report it
    group: str = ""  # the name under which it is reported, such as a tier of targets
    level: int = -1  # of the curriculum; -1: the full task
    broken: bool = False  # truncated because an observation or reward was not finite, or the environment failed
    idle: bool = False  # truncated because it gave no reward for too long
    info: Mapping[str, float] = {}  # the values under env.info_keywords at its last step


def info_means(episodes: Iterable[Episode]) -> dict[str, float]:
    """The mean of each value of info, over the episodes that have it."""
    values: dict[str, list[float]] = {}
    for episode in episodes:
        for key, value in episode.info.items():
            values.setdefault(key, []).append(value)
    return {key: float(np.mean(found)) for key, found in values.items()}


def successes(episodes: Sequence[Episode], reported: bool = False) -> list[bool] | None:
    """True for each episode that was a success: one that broke or reports nothing was none. None if no episode reports success,
    unless the environment is known to do so (`reported`)."""
    if not reported and all(episode.success is None for episode in episodes):
        return None
    return [bool(episode.success) and not episode.broken for episode in episodes]


def succeeded(reported: Any) -> bool | None:
    """What an environment reports as success; None if it reports nothing."""
    if reported is None:
        return None
    found = np.asarray(reported)
    numbers = found.size > 0 and found.dtype.kind in "biuf"  # "no" and [] are no success, and neither is NaN
    return numbers and bool(found.all()) and not np.isnan(found).any()


def finite_score(score: Any, otherwise: float) -> float:
    """A finite number of no more than LARGEST_SCORE, otherwise the other value: environments may use the key for anything."""
    try:
        found = float(score) if isinstance(score, int | float | np.number | np.bool_) else math.nan
    except (OverflowError, TypeError):  # an int with 400 digits, a complex number
        return otherwise
    return found if abs(found) <= LARGEST_SCORE else otherwise
