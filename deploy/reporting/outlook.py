"""The score that is to be expected when a run ends as planned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from deploy.reporting.forecast import forecast, forecast_text
from deploy.reporting.status_file import LATEST, ForecastFigures
from transport.text import moment_text

LINE_SECONDS = 600.0  # between two lines with a forecast


class Outlook:
    """Forecasts the score of the evaluation at the end of a run from the evaluations since it was started."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._said_at = say, -math.inf
        self._version: object = None  # of the newest evaluation
        self._figure = "return_mean"
        self._seconds: list[float] = []
        self._scores: list[float] = []

    def on_evaluation(self, evaluation: Mapping[str, Any], worked_seconds: float) -> None:
        """Takes the newest evaluation, which may be one that is known."""
        version, score, returned = (evaluation.get(name) for name in ("policy_version", "score_mean", "return_mean"))
        if version in (None, self._version) or returned is None:
            return
        if score not in (None, returned):  # the environment has one of its own
            self._figure = "score_mean"
        self._version = version
        self._seconds.append(worked_seconds)
        self._scores.append(float(returned if score is None else score))

    def figures(self, worked_seconds: float, ends_at: float, now: float) -> dict[str, Any]:
        """Keys of the status document."""
        if ends_at > LATEST:
            return {"ends_at": None, "forecast": None}
        found = forecast(self._seconds, self._scores, worked_seconds + ends_at - now)
        shown = found and ForecastFigures(self._figure, *found)
        if shown and now >= self._said_at + LINE_SECONDS:
            self._said_at = now
            self._say(f"forecast for {moment_text(ends_at, now)}: {forecast_text(msgspec.to_builtins(shown))}")
        return {"ends_at": ends_at, "forecast": msgspec.to_builtins(shown)}
