"""How draws are divided among shards, and what the shards' limiters are told."""

from __future__ import annotations

import numpy as np
import pytest

from replay.client.shares import Ledger, divide
from replay.table.limiter import ShardLimiter
from transport.messages import ShardFigures
from transport.shards import shard_names, shard_of


@pytest.mark.parametrize("totals", [(1.0, 1.0, 1.0, 1.0), (0.1, 5.0, 0.0, 900.0), (3.0,), (1e-9, 1e9)])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_rows_follow_the_totals_on_average_and_always_add_up(totals: tuple[float, ...], rows: int) -> None:
    wanted = np.array(totals) * rows / sum(totals)
    places = (np.arange(1000) + 0.5) / 1000
    counts = np.array([divide(rows, totals, float(uniform)) for uniform in places])
    assert (counts.sum(1) == rows).all()
    assert (np.abs(counts - wanted) < 1).all(), "rounded up or down"
    assert np.abs(counts.mean(0) - wanted).max() <= 2 / 1000
    assert not counts[:, np.array(totals) == 0].any()


def test_an_actor_keeps_its_shard_and_all_shards_have_actors() -> None:
    actors = [f"actor-{index}" for index in range(256)]
    found = [shard_of(actor, 8).index for actor in actors]
    assert np.bincount(found, minlength=8).min() > 256 / 8 / 2
    assert [shard_of(actor, 8).index for actor in actors] == found
    moved = sum(before != shard_of(actor, 9).index for actor, before in zip(actors, found, strict=True))
    assert 0 < moved < 2 * 256 / 9, "only what the new shard takes"
    assert shard_names(1) == ("replay",) and shard_of("actor-3", 1).name == "replay"
    assert shard_names(2) == ("replay-0", "replay-1")


def figures(inserted: int, sampled: int) -> ShardFigures:
    return ShardFigures(1.0, 10, False, inserted, sampled)


def test_a_ledger_goes_on_counting_over_the_restart_of_a_shard() -> None:
    ledger = Ledger(2)
    assert ledger.counted(None) == (0.0, 0.5)
    ledger.heard(None, figures(30, 10))
    ledger.heard(None, figures(10, 70))
    assert ledger.counted(figures(30, 10)) == (80 * 0.75, 0.75)
    ledger.heard(None, figures(10, 0))  # the first one was restarted
    assert ledger.counted(figures(10, 0)) == (80 * 0.2, 0.2)
    ledger.heard(figures(10, 0), figures(10, 20))
    assert ledger.counted(figures(10, 20)) == (100 * 0.2, 0.2)


def test_inserts_into_a_shard_are_free_until_the_learner_draws() -> None:
    limiter = ShardLimiter(low=1.0, high=2.0)
    limiter.lease(16)
    limiter.inserted(1_000, 1_000)
    assert limiter.can_insert(1_000) and limiter.counts == (0, 0)
    limiter.tell(0.0, 0.5)
    limiter.inserted(20, 1_020)
    assert limiter.counts == (20, 0) and not limiter.can_insert(1_020), "20 > 0 samples + 8 of slack"
    limiter.tell(12.0, 0.5)
    assert limiter.can_insert(1_020)
    limiter.tell(49.0, 0.5)
    assert not limiter.can_sample(1_020), "49 > 2 * 20 + 8"
    limiter.lease(0)
    assert limiter.can_insert(1_020) and limiter.counts == (0, 0)


@pytest.mark.parametrize("inserting", [(1, 1, 1), (1, 0, 5), (0, 0, 1)])
@pytest.mark.parametrize("drawn", [(1, 1, 1), (8, 1, 0)])
def test_shards_never_wait_for_each_other_for_ever(inserting: tuple[int, ...], drawn: tuple[int, ...]) -> None:
    """However inserts and draws are spread, the run stays near its band; a shard without actors makes nobody wait."""
    low, high, batch, chunk = 1.5, 2.0, 12, 4
    limiters = [ShardLimiter(low, high) for _ in inserting]
    ledger, known = Ledger(len(limiters)), [figures(0, 0) for _ in inserting]
    for limiter in limiters:
        limiter.lease(2 * batch)
    inserted = sampled = 0
    for _ in range(3_000):
        moved = False
        for index, limiter in enumerate(limiters):
            now = figures(*limiter.counts)
            ledger.heard(known[index], now)
            known[index] = now
        for limiter, each in zip(limiters, known, strict=True):
            limiter.tell(*ledger.counted(each))
        for limiter, weight in zip(limiters, inserting, strict=True):
            for _ in range(weight):
                if limiter.can_insert(100):
                    limiter.inserted(chunk, 100)
                    inserted, moved = inserted + chunk, True
        if all(limiter.can_sample(100) for limiter in limiters):
            for limiter, share in zip(limiters, drawn, strict=True):
                limiter.sampled(batch * share // sum(drawn))
                sampled += batch * share // sum(drawn)
            moved = True
        assert moved, (inserted, sampled)
    assert inserted > 1_000 and low * 0.9 < sampled / inserted < high * 1.1
