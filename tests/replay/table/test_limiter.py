"""Samples per insert."""

from __future__ import annotations

import math
import random
import sys

import pytest

from replay.table.limiter import Limiter

LOW, HIGH, SLACK, MIN = 2.0, 4.0, 100, 50


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


def test_below_the_minimum_nothing_is_sampled_and_inserts_are_free() -> None:
    limiter = make_limiter()
    limiter.connect_learner()
    limiter.inserted(10_000, MIN - 1)
    assert limiter.can_insert(MIN - 1) and not limiter.can_sample(MIN - 1)


def test_without_a_learner_inserts_never_wait() -> None:
    limiter = make_limiter()
    limiter.connect_learner()
    limiter.inserted(10_000, MIN)
    assert not limiter.can_insert(MIN)
    limiter.disconnect_learner()
    assert limiter.can_insert(MIN)


def test_the_time_without_a_learner_blocks_neither_side() -> None:
    limiter = make_limiter()
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


def test_an_infinite_bound_never_makes_the_learner_wait() -> None:
    limiter = Limiter(MIN, LOW, float("inf"))
    limiter.connect_learner()
    limiter.sampled(10**9)
    assert limiter.can_sample(MIN) and not limiter.can_sample(MIN - 1)


@pytest.mark.parametrize("endless", [math.inf, sys.float_info.max])  # JSON has no infinity: the largest number stands for it
def test_without_an_upper_limit_samples_never_wait(endless: float) -> None:
    limiter = Limiter(MIN, LOW, endless)
    limiter.connect_learner()
    limiter.sampled(10**9)
    assert limiter.can_sample(MIN)
