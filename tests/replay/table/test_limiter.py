"""Samples per insert."""

from __future__ import annotations

import math
import random
import sys

import pytest

from replay.table.limiter import SPARE_SECONDS, Limiter
from tests.harness.waiting import Clock

LOW, HIGH, SLACK, MIN = 2.0, 4.0, 100, 50
LIMIT = 16.0


def make_limiter() -> Limiter:
    limiter = Limiter(MIN, LOW, HIGH)
    limiter.batches = SLACK
    return limiter


def test_the_ratio_stays_in_the_band_whichever_side_is_faster() -> None:
    for bias in (0.1, 0.5, 0.9):
        limiter, inserted, sampled, size = make_limiter(), 0, 0, MIN
        limiter.connect_learner()
        chooser = random.Random(int(bias * 10))
        for _ in range(20_000):
            if chooser.random() < bias and limiter.can_insert(size):
                limiter.inserted(8, size)
                inserted += 8
            elif limiter.can_sample(size):
                limiter.sampled(16)
                sampled += 16
            assert LOW * inserted - SLACK - LOW * 8 <= sampled <= HIGH * inserted + SLACK + 16
        assert inserted > 10_000  # neither side has stopped the other for good
        assert LOW * 0.9 <= sampled / inserted <= HIGH * 1.1


def test_inserts_are_free_below_the_minimum_and_without_a_learner_whose_return_begins_anew() -> None:
    limiter = make_limiter()
    limiter.connect_learner()
    limiter.inserted(10_000, MIN - 1)
    assert limiter.can_insert(MIN - 1) and not limiter.can_sample(MIN - 1)
    limiter.inserted(10_000, MIN)
    assert not limiter.can_insert(MIN)
    limiter.disconnect_learner()
    assert limiter.can_insert(MIN)
    limiter.inserted(1_000_000, MIN)
    limiter.connect_learner()
    assert limiter.can_insert(MIN) and limiter.can_sample(MIN)
    limiter.sampled(int(SLACK) + 1)
    assert not limiter.can_sample(MIN), "a backlog of inserts must not become a burst of samples"


def test_outstanding_chunks_count_as_future_inserts() -> None:
    limiter = Limiter(MIN, LOW, HIGH)
    limiter.under_way = 10
    limiter.connect_learner()
    limiter.inserted(10, MIN)
    assert limiter.can_insert(MIN), "a learner cannot have drawn what had not arrived"
    limiter.inserted(1, MIN)
    assert not limiter.can_insert(MIN)
    limiter.sampled(int(HIGH * 21))
    assert limiter.can_sample(MIN)
    limiter.sampled(1)
    assert not limiter.can_sample(MIN)


@pytest.mark.parametrize("endless", [math.inf, sys.float_info.max])  # JSON has no infinity: the largest number stands for it
def test_without_an_upper_limit_samples_never_wait(endless: float) -> None:
    limiter = Limiter(MIN, LOW, endless)
    limiter.connect_learner()
    limiter.sampled(10**9)
    assert limiter.can_sample(MIN) and not limiter.can_sample(MIN - 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("replay.table.limiter.time", clock)
    return clock


def slow(limit: float = LIMIT, inserted: int = 100) -> Limiter:
    """After `inserted` items the learner has drawn what the band allows."""
    limiter = Limiter(MIN, LOW, HIGH, limit)
    limiter.connect_learner()
    limiter.inserted(inserted, MIN)
    limiter.sampled(int(HIGH) * inserted)
    assert limiter.can_sample(MIN)
    limiter.sampled(8)
    return limiter


def draw_all(limiter: Limiter, clock: Clock) -> int:
    """How many items a learner gets that waits SPARE_SECONDS for each batch, until it must wait for inserts."""
    drawn = 0
    while True:
        clock.now += SPARE_SECONDS
        if not limiter.can_sample(MIN):
            return drawn
        limiter.sampled(8)
        drawn += 8


@pytest.mark.parametrize(
    ("limit", "seconds", "size", "may"),
    [
        (LIMIT, 0.0, MIN, False),
        (LIMIT, 0.9 * SPARE_SECONDS, MIN, False),
        (LIMIT, SPARE_SECONDS, MIN, True),
        (LIMIT, 3600.0, MIN, True),
        (LIMIT, SPARE_SECONDS, MIN - 1, False),
        (HIGH, 3600.0, MIN, False),
        (0.0, 3600.0, MIN, False),
    ],
)
def test_a_learner_that_has_waited_may_draw_above_the_band(
    clock: Clock, limit: float, seconds: float, size: int, may: bool
) -> None:
    limiter = slow(limit)
    clock.now += seconds
    assert limiter.can_sample(size) == may


def test_spare_batches_come_one_by_one_and_end_at_the_limit(clock: Clock) -> None:
    limiter = slow()
    clock.now += 10 * SPARE_SECONDS
    assert limiter.can_sample(MIN)
    limiter.sampled(8)
    assert not limiter.can_sample(MIN), "a long wait must not become a burst of samples"
    assert draw_all(limiter, clock) == (LIMIT - HIGH) * 100 - 16
    limiter.inserted(1, MIN)
    assert draw_all(limiter, clock) == LIMIT
    assert limiter.most == LIMIT


def test_when_simulators_are_fast_again_the_band_is_as_if_they_had_always_been(clock: Clock) -> None:
    limiter, other = slow(), slow(limit=0.0)
    draw_all(limiter, clock)
    for _ in range(1_000):
        limiter.inserted(8, MIN)
        other.inserted(8, MIN)
        assert limiter.can_insert(MIN) == other.can_insert(MIN)
        for _ in range(3):
            assert limiter.can_sample(MIN) == other.can_sample(MIN), "no time passes"
            if other.can_sample(MIN):
                limiter.sampled(16)
                other.sampled(16)
    for each in (limiter, other):  # and no more is inserted without the learner than ever
        each.inserted(100_000, MIN)
        assert not each.can_insert(MIN)


def test_a_learner_that_connects_again_has_no_spare_batches_until_something_is_inserted(clock: Clock) -> None:
    limiter = slow()
    draw_all(limiter, clock)
    limiter.disconnect_learner()
    limiter.connect_learner()
    limiter.sampled(1)
    assert draw_all(limiter, clock) == 0
    limiter.inserted(10, MIN)
    assert draw_all(limiter, clock) == LIMIT * 10
