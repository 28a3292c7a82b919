"""Lines, amounts and progress as people see them."""

from __future__ import annotations

import pytest

from tests.harness.waiting import Clock
from transport.text import ProgressReport, amount, plain, reported


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("an ordinary line, with ü and 日本", "an ordinary line, with ü and 日本"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]2;title\x1b\\text", "text"),
        ("\x1b]52;c;cm0gLXJm\x07text", "text"),
        ("\x1b", "\\x1b"),
        ("\x1b[", "\\x1b["),
        ("a\x1bcb", "a\\x1bcb"),  # ESC c resets a terminal
        ("\x9b2Jtext", "\\x9b2Jtext"),  # the same as ESC [ to some
        ("0%\r50%\r100%", "100%"),
        ("done\r\n", "done"),
        ("one\ttwo\xa0three", "one two three"),
        ("bell\x07 null\x00 left\u202e", "bell\\x07 null\\x00 left\\u202e"),
        ("\ud800", "\\ud800"),
    ],
)
def test_no_character_that_steers_a_terminal_is_left(text: str, shown: str) -> None:
    assert plain(text) == shown and plain(shown) == shown


@pytest.mark.parametrize(
    ("value", "text"),
    [(1523.44, "1,523.4"), (-10.0, "-10.0"), (7.934, "7.93"), (0.7435, "0.744"), (-0.0123, "-0.0123"), (0.0, "0.0")],
)
def test_small_amounts_have_more_digits(value: float, text: str) -> None:
    assert amount(value) == text


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
