"""Evaluations and other figures as the page gets them: columns of short numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from actors.evaluation.summary import interval, mean_interval
from deploy.recorded.history import Grid, steps_at
from deploy.recorded.run import Record, RecordedEvaluation

Document = dict[str, Any]
DIGITS = 5


def evaluations(found: Sequence[RecordedEvaluation], grid: Grid) -> Document:
    """The evaluations as columns, with 95 % intervals: of the mean return by the normal distribution, of success by Wilson's."""
    columns: Document = {name: numbers(one.figures[name] for one in found) for name in found[0].figures} if found else {}
    columns["policy_version"] = numbers((one.figures["policy_version"] for one in found), digits=9)
    seconds = [one.seconds for one in found]
    returns = [_return_interval(one.figures) for one in found]
    columns["return_low"], columns["return_high"] = numbers(low for low, _ in returns), numbers(high for _, high in returns)
    success = [_success_interval(one.figures["success_rate"], one.figures["episodes"]) for one in found]
    columns["success_low"], columns["success_high"] = [low for low, _ in success], [high for _, high in success]
    steps = numbers(np.round(steps_at(grid, seconds)), 9)
    return columns | {"seconds": numbers(seconds, 7), "steps": steps, "best": [one.best for one in found]}


def _return_interval(figures: Record) -> tuple[float | None, float | None]:
    """The 95 % interval; None for a single episode, which has no spread."""
    mean, std, episodes = (figures[name] for name in ("return_mean", "return_std", "episodes"))
    if mean is None or std is None or not episodes or episodes < 2:
        return None, None
    return mean_interval(mean, std, episodes, figures["return_min"], figures["return_max"])


def _success_interval(rate: float | None, episodes: float | None) -> tuple[float | None, float | None]:
    if rate is None or episodes is None or episodes < 1 or not 0 <= rate <= 1:  # out of bounds only in a damaged file
        return None, None
    low, high = interval(round(rate * episodes), int(episodes))
    return rounded(low), rounded(high)


def numbers(values: Iterable[float | None], digits: int = DIGITS) -> list[float | None]:
    """Numbers as they are sent: with few digits, and None for a missing, infinite or NaN value."""
    return [rounded(value, digits) for value in values]


def rounded(value: float | None, digits: int = DIGITS) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short
