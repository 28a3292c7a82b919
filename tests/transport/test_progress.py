"""How far something has come, and when it will be over."""

from __future__ import annotations

import pytest

from tests.harness.waiting import Clock
from transport.text import ProgressReport, reported


@pytest.mark.parametrize(
    ("passed", "done", "text"),
    [
        (10.0, 20, ", about 40 s left"),
        (10.0, 99.9, ", about 1 s left"),
        (60.0, 20, ", about 4 min left"),
        (3600.0, 20, ", about 4 h 00 min left"),
        (10.0, 0, ""),
        (10.0, 100, ""),
    ],
)
def test_the_time_that_is_left_follows_from_the_pace_so_far(passed: float, done: float, text: str) -> None:
    clock = Clock()
    made = ProgressReport(100, clock=clock.monotonic)
    clock.now += passed
    assert made.left(done) == text


def test_a_report_is_due_every_few_seconds_and_not_for_what_is_short() -> None:
    clock = Clock()
    made = ProgressReport(100, every_seconds=5.0, clock=clock.monotonic)
    found = []
    for _ in range(12):
        found.append(made.due)
        clock.now += 1.0
    assert [second for second, due in enumerate(found) if due] == [5, 10]


def test_items_are_reported_while_they_are_taken() -> None:
    clock, said = Clock(), list[str]()
    for _ in reported(range(4), "runs", said.append, clock.monotonic):
        clock.now += 3.0
    assert said == ["runs: 2 of 4, about 6 s left"]
