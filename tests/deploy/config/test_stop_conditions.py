"""When a run ends as planned."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from deploy.config.stop_conditions import StopConditions, add_stop_options, stop_conditions
from deploy.config.values import moment

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
    stop = StopConditions(HOUR, at)
    assert stop.announcement(now) == "stops at 07:00, in 2 h 00 min"
    assert stop.reason(HOUR - 1.0, now) == "" and stop.reason(HOUR, now) == "60 min are over"
    assert stop.ends_at(0.0, now) == now + HOUR
    now = at + 3 * HOUR  # it was asleep
    assert stop.reason(10.0, now) == "it is 07:00 (--stop-at)" and stop.ends_at(10.0, now) == at
    never = StopConditions()
    assert never.ends_at(10.0, now) == math.inf and never.announcement(now) == never.reason_after_evaluation(1e9) == ""


def test_a_supervisor_in_the_background_has_the_same_conditions() -> None:
    parser = argparse.ArgumentParser()
    add_stop_options(parser)
    for conditions in (StopConditions(), StopConditions(90.5, 1_796_108_400.25, -1.5)):
        assert stop_conditions(parser.parse_args(conditions.flags())) == conditions
