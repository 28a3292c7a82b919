"""What an evaluation will show at the end of a run, from those so far.

The score is forecast to stay as it is, the median of the last quarter of the evaluations. The range is that of this quarter, and
as much wider as the score has changed since half of the time, for each doubling of the time that is left to come.

Measured on 95 curves of benchmarks/learning/results, from half of the time: the score is wrong by 0.09 of what the whole curve
spans in the mean and 0.01 in the median; a saturating exponential is wrong by 0.16 and 0.04, a line over the logarithm of the
time by 0.14 and 0.03. The range holds the last evaluation of 80 % of them: 4 % are lower, 16 % higher.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from actors.figures import EVALUATION

LEAST = 8  # evaluations
RECENT_SHARE, LEAST_RECENT = 0.25, 3
FURTHEST = 4.0  # times as long as the run has been at work: further ahead the range would hold too little


class Forecast(NamedTuple):
    score: float
    low: float
    high: float


def forecast(seconds: Sequence[float], scores: Sequence[float], end: float) -> Forecast | None:
    """The score at `end`, by evaluations at `seconds`, all since the run began to work. None where too little is known."""
    now = seconds[-1] if seconds else 0.0
    if len(scores) < LEAST or not 0 < now <= end <= FURTHEST * now:
        return None
    number = max(math.ceil(RECENT_SHARE * len(scores)), LEAST_RECENT)
    recent, score = scores[-number:], median(scores[-number:])
    earlier = [value for at, value in zip(seconds, scores, strict=True) if at <= now / 2][-number:] or scores[:1]
    change = (score - median(earlier)) * math.log2(end / now)
    return Forecast(score, min(recent) + min(change, 0.0), max(recent) + max(change, 0.0))


def forecast_text(figures: Mapping[str, Any]) -> str:
    """A forecast of the status document, as people read it: `return 475.0 (460.0 to 500.0)`."""
    shown = next(one for one in EVALUATION if one.name == figures["figure"])
    score, low, high = (shown.text(figures[name]) for name in ("score", "low", "high"))
    return f"{shown.word} {score} ({low} to {high})"
