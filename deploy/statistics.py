"""The arithmetic of a comparison: score to reach, interquartile mean, bootstrap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

SHARE = 0.9  # of the way from random to the reference
RESAMPLES = 10_000
LEVEL = 0.95
CUT = 0.25  # of the sorted values, at each end


class Interval(NamedTuple):
    low: float
    high: float


def target(random: float, reference: float) -> float:
    """The score that counts as reached."""
    return random + SHARE * (reference - random)


def final_score(scores: Sequence[float], count: int) -> float:
    """The mean of the last `count` evaluations; NaN where there is none."""
    return float(np.mean(scores[-count:])) if len(scores) else math.nan


def iqm(values: Sequence[float] | np.ndarray) -> float:
    """The interquartile mean: a quarter of the values, rounded down, is left out at each end (Agarwal et al. 2021,
    arXiv:2108.13264, section 4.3). Up to three values: the mean. NaN of none."""
    return float(_iqm(np.asarray(values, np.float64)[None])[0]) if len(values) else math.nan


def cut_off(strata: Mapping[str, Sequence[float]]) -> list[str]:
    """The strata of which no value counts in the interquartile mean of all values."""
    values = sorted(value for stratum in strata.values() for value in stratum)
    cut = int(CUT * len(values))
    kept = values[cut : len(values) - cut]
    return [name for name, stratum in strata.items() if not any(kept[0] <= value <= kept[-1] for value in stratum)]


def bootstrap(strata: Sequence[Sequence[float]], seed: int = 0) -> Interval | None:
    """The 95 % percentile interval of the interquartile mean of all values, by a stratified bootstrap: the values of each stratum
    (the seeds of one task) are drawn anew from that stratum, with replacement (arXiv:2108.13264, section 4.1).

    None where a stratum has fewer than two values: it has no spread to draw from.
    """
    if not strata or any(len(values) < 2 for values in strata):
        return None
    random = np.random.default_rng(seed)
    drawn = [np.asarray(values)[random.integers(len(values), size=(RESAMPLES, len(values)))] for values in strata]
    low, high = np.quantile(_iqm(np.concatenate(drawn, axis=1)), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def bootstrap_band(curves: np.ndarray, resamples: int = 1000, seed: int = 0) -> tuple[np.ndarray, np.ndarray] | None:
    """`bootstrap` at each point of curves, where whole curves are drawn anew: [N, points] -> low and high, [points] each.

    None for fewer than two curves.
    """
    count, points = curves.shape
    if count < 2:
        return None
    drawn = curves[np.random.default_rng(seed).integers(count, size=(resamples, count))]  # [resamples, N, points]
    means = _iqm(drawn.transpose(0, 2, 1).reshape(-1, count)).reshape(resamples, points)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def probability_of_improvement(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How often a value of `ours` is above one of `theirs`; ties count half (arXiv:2108.13264, section 4.3). NaN of none."""
    differences = np.subtract.outer(np.asarray(ours, np.float64), np.asarray(theirs, np.float64))
    return float(np.mean((np.sign(differences) + 1) / 2)) if differences.size else math.nan


def geometric_mean(values: Sequence[float]) -> float:
    """NaN of none."""
    return math.exp(float(np.mean(np.log(values)))) if len(values) else math.nan


def time_to_score(seconds: Sequence[float], scores: Sequence[float], threshold: float, consecutive: int) -> float | None:
    """The time of the first of `consecutive` evaluations in a row at `threshold` or above; None if there is none."""
    above = 0
    for number, score in enumerate(scores):
        above = above + 1 if score >= threshold else 0  # a NaN is not above
        if above == consecutive:
            return float(seconds[number - consecutive + 1])
    return None


def _iqm(values: np.ndarray) -> np.ndarray:
    """The interquartile mean of each row: [M, N] -> [M]."""
    count = values.shape[1]
    cut = int(CUT * count)
    middle: np.ndarray = np.sort(values, axis=1)[:, cut : count - cut].mean(axis=1)
    return middle
