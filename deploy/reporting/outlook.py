"""When a run ends as planned, and the score that is to be expected then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from deploy.reporting.forecast import forecast, forecast_text
from deploy.reporting.status_file import ForecastFigures
from transport.text import duration, moment_text

LINE_SECONDS = 600.0  # between two lines with a forecast


@dataclass(frozen=True)
class Ends:
    """What ends a run besides `total_steps`. `wall` gives seconds since 1970; a suspended machine's clock goes on."""

    stop_after_seconds: float = 0.0  # of work; 0: never
    stop_at: float = math.inf  # seconds since 1970
    wall: Callable[[], float] = time.time

    def reason(self, worked_seconds: float) -> str:
        """Why the run ends now; empty while it goes on. `worked_seconds`: since its first step."""
        now = self.wall()
        if now >= self.stop_at:
            return f"it is {moment_text(self.stop_at, now)} (--stop-at)"
        over = self.stop_after_seconds and worked_seconds >= self.stop_after_seconds
        return f"{duration(self.stop_after_seconds)} are over" if over else ""

    def at(self, worked_seconds: float) -> float:
        """When that will be, in seconds since 1970, if the run is not paused until then."""
        after = self.stop_after_seconds - worked_seconds if self.stop_after_seconds else math.inf
        return min(self.stop_at, self.wall() + after)

    def announcement(self) -> str:
        """A line about `stop_at`; empty without."""
        now = self.wall()
        if not math.isfinite(self.stop_at):
            return ""
        return f"stops at {moment_text(self.stop_at, now)}, in {duration(max(self.stop_at - now, 0.0))}"


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
        if not math.isfinite(ends_at):
            return {"ends_at": None, "forecast": None}
        found = forecast(self._seconds, self._scores, worked_seconds + ends_at - now)
        shown = found and ForecastFigures(self._figure, *found)
        if shown and now >= self._said_at + LINE_SECONDS:
            self._said_at = now
            self._say(f"forecast for {moment_text(ends_at, now)}: {forecast_text(msgspec.to_builtins(shown))}")
        return {"ends_at": ends_at, "forecast": msgspec.to_builtins(shown)}
