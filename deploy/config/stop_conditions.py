"""What ends a run besides `total_steps`: --stop-after, --stop-at and --stop-at-return."""

from __future__ import annotations

import argparse
import math
import time
from datetime import UTC, datetime

from msgspec import Struct

from deploy.config.values import DURATION, MOMENT
from deploy.errors import ConfigError
from transport.text import amount, duration, moment_text


class StopConditions(Struct, frozen=True):
    """The first that holds ends the run. `worked_seconds` is the time since its first step, without pauses; `now` is in seconds
    since 1970, because a suspended machine's clock goes on."""

    after_seconds: float = 0.0  # of work; 0: never
    at: float | None = None  # seconds since 1970
    at_return: float | None = None

    def check(self) -> None:
        """Raises ConfigError for what cannot be meant."""
        if not 0 <= self.after_seconds < math.inf:
            raise ConfigError(f"--stop-after: expected a duration of at least 0, got {self.after_seconds:g} s")
        if self.at is not None and self.at <= time.time():
            raise ConfigError(f"--stop-at: {moment_text(self.at, 0.0)} has passed")
        if not math.isfinite(self.at_return or 0.0):
            raise ConfigError(f"--stop-at-return: expected a finite number, got {self.at_return:g}")

    def reason(self, worked_seconds: float, now: float) -> str:
        """Why the run ends now; empty while it goes on."""
        if self.at is not None and now >= self.at:
            return f"it is {moment_text(self.at, now)} (--stop-at)"
        over = self.after_seconds and worked_seconds >= self.after_seconds
        return f"{duration(self.after_seconds)} are over" if over else ""

    def reason_after_evaluation(self, return_mean: float) -> str:
        reached = self.at_return is not None and return_mean >= self.at_return
        return f"an evaluation has reached a return of {amount(return_mean)} (--stop-at-return)" if reached else ""

    def ends_at(self, worked_seconds: float, now: float) -> float:
        """When that will be by the clock, if the run is not paused until then."""
        after = self.after_seconds - worked_seconds if self.after_seconds else math.inf
        return min(math.inf if self.at is None else self.at, now + after)

    def announcement(self, now: float) -> str:
        """A line about `at`; empty without."""
        return "" if self.at is None else f"stops at {moment_text(self.at, now)}, in {duration(max(self.at - now, 0.0))}"

    def flags(self) -> list[str]:
        """The options of `add_stop_options`, for a supervisor in the background."""
        at = None if self.at is None else datetime.fromtimestamp(self.at, UTC).isoformat()
        given = {"after": self.after_seconds, "at": at, "at-return": self.at_return}
        return [f"--stop-{name}={value}" for name, value in given.items() if value is not None]


def add_stop_options(target: argparse._ActionsContainer) -> None:
    target.add_argument(
        "--stop-after",
        type=DURATION,
        default=0.0,
        metavar="TIME",
        help="time after its first step at which the run is stopped: 90s, 5m or 2h (default: never)",
    )
    target.add_argument(
        "--stop-at",
        type=MOMENT,
        metavar="TIME",
        help="time of the clock at which the run is stopped: 07:00, the next one, or 2026-12-01T07:00 (default: never)",
    )
    target.add_argument(
        "--stop-at-return",
        type=float,
        metavar="RETURN",
        help="stop the run when an evaluation has reached this mean return (default: never)",
    )


def stop_conditions(parsed: argparse.Namespace) -> StopConditions:
    """Those of `add_stop_options`."""
    return StopConditions(parsed.stop_after, parsed.stop_at, parsed.stop_at_return)
