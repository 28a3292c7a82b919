"""The score that is expected at the end of a run."""

from __future__ import annotations

import math
from datetime import datetime

import pytest

from deploy.reporting.outlook import LINE_SECONDS, Outlook

HOUR = 3600.0


def test_each_evaluation_counts_once_and_a_forecast_is_said_once_in_a_while() -> None:
    said: list[str] = []
    outlook = Outlook(said.append)
    at = datetime(2026, 12, 1, 7, 0).timestamp()
    for number in range(8):
        for _ in range(3):  # the newest one is there until the next
            outlook.on_evaluation({"policy_version": number, "return_mean": 100.0 + number}, 100.0 * (number + 1))
        found = outlook.figures(100.0 * (number + 1), at, at - 900.0)
        assert (found["forecast"] is None) == (number < 7) and found["ends_at"] == at
    high = 107.0 + (106.0 - 102.0) * math.log2(1700 / 800)
    assert found["forecast"] == {"figure": "return_mean", "score": 106.0, "low": 105.0, "high": pytest.approx(high)}
    outlook.on_evaluation({"policy_version": 8, "return_mean": -1.0, "score_mean": 106.0}, 900.0)
    assert outlook.figures(900.0, at, at - 800.0)["forecast"]["figure"] == "score_mean", "the environment's own"
    assert said == ["forecast for 07:00: return 106.0 (105.0 to 111.3)"]
    outlook.figures(800.0, at, at - 900.0 + LINE_SECONDS)
    assert len(said) == 2 and said[1].startswith("forecast for 07:00: score ")
    for never in (math.inf, 2.0**38):  # no time that a status may have
        assert outlook.figures(800.0, never, at) == {"ends_at": None, "forecast": None}
