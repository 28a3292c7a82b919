"""When a policy has reached a score: the measure that a suite reports and that a sweep can minimise."""

from __future__ import annotations

from collections.abc import Sequence


def time_to_score(seconds: Sequence[float], scores: Sequence[float], threshold: float, consecutive: int) -> float | None:
    """The time of the first of so many consecutive evaluations at `threshold` or above; None if there is none."""
    above = 0
    for number, score in enumerate(scores):
        above = above + 1 if score >= threshold else 0  # a NaN is not above
        if above == consecutive:
            return float(seconds[number - consecutive + 1])
    return None
