"""When a run ends as planned, and what is expected of it then."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from deploy.config.values import moment
from deploy.reporting.ends import LINE_SECONDS, Ends, Outlook

HOUR = 3600.0


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.skipif(sys.platform == "win32", reason="its time zone cannot be set")
@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("now", "typed", "hours"),
    [
        ("2026-11-30T23:00", "07:00", 8.0),
        ("2026-11-30T06:59:30", "07:00", 30 / HOUR),
        ("2026-11-30T07:00", "07:00", 24.0),
        ("2026-11-30T23:00", "23:30", 0.5),
        ("2026-11-30T23:00", "2026-12-01T07:00", 8.0),
        ("2026-03-28T23:00", "07:00", 7.0),  # the clock is put forward in that night
        ("2026-10-24T23:00", "07:00", 9.0),  # and back in this one
    ],
)
def test_a_time_of_the_clock_is_the_next_one_and_knows_daylight_saving(now: str, typed: str, hours: float) -> None:
    then = datetime.fromisoformat(now)
    assert moment(typed, then) - then.timestamp() == hours * HOUR


@pytest.mark.parametrize("typed", ["soon", "25:00", "7", "07:00+01:00", "2026-13-01T07:00", ""])
def test_what_is_no_time_is_refused(typed: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        moment(typed)


def test_the_first_of_two_ends_counts_and_a_suspended_machine_is_late_not_wrong() -> None:
    at = datetime(2026, 12, 1, 7, 0).timestamp()
    now = at - 2 * HOUR
    ends = Ends(HOUR, at, lambda: now)
    assert ends.announcement() == "stops at 07:00, in 2 h 00 min"
    assert ends.reason(HOUR - 1.0) == "" and ends.reason(HOUR) == "60 min are over"
    assert ends.at(0.0) == now + HOUR
    now = at + 3 * HOUR  # it was asleep
    assert ends.reason(10.0) == "it is 07:00 (--stop-at)" and ends.at(10.0) == at
    assert Ends(0.0, wall=lambda: now).at(10.0) == math.inf and Ends().announcement() == ""


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
    assert outlook.figures(800.0, math.inf, at) == {"ends_at": None, "forecast": None}
