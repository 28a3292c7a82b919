"""How draws are divided among shards, and what the shards' limiters are told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from replay.client.shares import COUNT_SECONDS, Ledger, divide
from replay.shards import shard_names, shard_of
from replay.table.limiter import ShardLimiter
from transport.messages.replay import Counts, ShardFigures


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


def figures(inserted: int, sampled: int, under_way: int = 0) -> ShardFigures:
    return ShardFigures(1.0, 10, False, inserted, sampled, under_way)


def test_a_shard_counts_its_share_of_the_inserts_and_of_all_draws() -> None:
    ledger = Ledger(2)
    assert ledger.counts(0) == Counts(0, 0.0, 0.5)
    ledger.on_figures(0, figures(30, 10), 0.0)
    ledger.on_figures(1, figures(10, 70), 0.0)
    assert ledger.counts(0) == Counts(0, 80 * 0.75, 0.75) and ledger.counts(1) == Counts(0, 80 * 0.25, 0.25)


def test_counting_begins_anew_with_a_new_shard_and_at_times_with_other_actors() -> None:
    ledger = Ledger(2)
    ledger.on_figures(0, figures(30, 10, 5), 0.0)
    ledger.on_figures(1, figures(10, 70, 5), 0.0)
    ledger.on_figures(0, figures(40, 10, 5), 1.0)
    ledger.new(1)
    assert ledger.counts(0) == Counts(40, 0.0, 0.5) and ledger.counts(1) == Counts(0, 0.0, 0.5)
    ledger.on_figures(1, figures(4, 8, 5), 2.0)  # it knows its actors now
    assert ledger.counts(1) == Counts(4, 0.0, 0.5)
    ledger.on_figures(0, figures(50, 18, 5), 3.0)
    ledger.on_figures(1, figures(14, 8, 0), 3.0)  # they have left it
    assert ledger.counts(0) == Counts(40, 8 * 0.5, 0.5), "not again so soon"
    ledger.on_figures(1, figures(14, 8, 0), 2.0 + COUNT_SECONDS)
    assert ledger.counts(0) == Counts(50, 0.0, 0.5) and ledger.counts(1) == Counts(14, 0.0, 0.5)


def test_inserts_into_a_shard_are_free_until_the_learner_draws() -> None:
    limiter = ShardLimiter(low=1.0, high=2.0)
    assert limiter.most == 2.0
    limiter.lease(16)
    limiter.inserted(1_000, 1_000)
    assert limiter.can_insert(1_000) and limiter.own == (0, 0)
    limiter.adopt(Counts(0, 0.0, 0.5))
    limiter.inserted(20, 1_020)
    assert limiter.own == (20, 0) and not limiter.can_insert(1_020), "20 > 0 samples + 8 of slack"
    limiter.adopt(Counts(0, 12.0, 0.5))
    assert limiter.can_insert(1_020)
    limiter.adopt(Counts(0, 49.0, 0.5))
    assert not limiter.can_sample(1_020), "49 > 2 * 20 + 8, and no batch is spare"
    limiter.adopt(Counts(15, 0.0, 0.5))
    assert limiter.can_insert(1_020), "5 since then"
    limiter.lease(0)
    assert limiter.can_insert(1_020) and limiter.own == (0, 0)


class Play:
    """Shards with actors and a learner that draws, without sockets."""

    low, high, batch, chunk = 1.5, 2.0, 12, 4

    def __init__(self, actors: Sequence[int], drawn: Sequence[int]) -> None:
        self.actors, self.drawn = list(actors), drawn
        self.ledger, self.now = Ledger(len(actors)), 0.0
        self.inserted, self.sampled = [0] * len(actors), 0
        self.limiters = [self.limiter() for _ in actors]

    def limiter(self) -> ShardLimiter:
        made = ShardLimiter(self.low, self.high)
        made.lease(2 * self.batch)
        return made

    def restart(self, shard: int) -> None:
        self.limiters[shard] = self.limiter()
        self.ledger.new(shard)

    def turns(self, count: int) -> None:
        for _ in range(count):
            self._turn()

    def _turn(self) -> None:
        self.now += 0.1
        moved = False
        for index, limiter in enumerate(self.limiters):
            limiter.under_way = 8 * self.chunk * self.actors[index]
            self.ledger.on_figures(index, figures(*limiter.own, limiter.under_way), self.now)
        for index, limiter in enumerate(self.limiters):
            limiter.adopt(self.ledger.counts(index))
        for index, limiter in enumerate(self.limiters):
            for _ in range(self.actors[index]):
                if limiter.can_insert(100):
                    limiter.inserted(self.chunk, 100)
                    self.inserted[index] += self.chunk
                    moved = True
        if all(limiter.can_sample(100) for limiter in self.limiters):
            for limiter, share in zip(self.limiters, self.drawn, strict=True):
                limiter.sampled(self.batch * share // sum(self.drawn))
                self.sampled += self.batch * share // sum(self.drawn)
            moved = True
        assert moved, "all wait for each other"


@pytest.mark.parametrize("actors", [(1, 1, 1), (1, 0, 5), (0, 0, 1)])
@pytest.mark.parametrize("drawn", [(1, 1, 1), (10, 2, 0)])
def test_shards_never_wait_for_each_other_for_ever(actors: tuple[int, ...], drawn: tuple[int, ...]) -> None:
    """However inserts and draws are spread, the run stays near its band; a shard without actors makes nobody wait."""
    play = Play(actors, drawn)
    play.turns(6_000)
    assert play.low * 0.9 < play.sampled / sum(play.inserted) < play.high * 1.1
    shares = np.array(play.inserted) / sum(play.inserted)
    assert shares == pytest.approx(np.array(actors) / sum(actors), abs=0.1), "the actors of all shards are held back alike"


@pytest.mark.parametrize("event", ["a shard is restarted", "actors come", "a shard has lost the learner"])
def test_no_shard_has_to_catch_up_with_the_others_or_with_its_own_past(event: str) -> None:
    play = Play((2, 2), (1, 1))
    play.turns(3_000)
    if event == "a shard is restarted":
        play.restart(1)
    else:
        play.actors[1] = 6 if event == "actors come" else 3  # the learner counts anew, from what the shards have inserted
    play.turns(3_000 if event == "a shard has lost the learner" else 700)  # more than COUNT_SECONDS
    if event == "a shard has lost the learner":  # a broken connection: the shard drops the learner, which greets again
        play.limiters[1].lease(0)
        play.limiters[1].lease(2 * play.batch)
    sampled, inserted = play.sampled, np.array(play.inserted)
    play.turns(1_000)
    new = np.array(play.inserted) - inserted
    assert new / new.sum() == pytest.approx(np.array(play.actors) / sum(play.actors), abs=0.15)
    assert play.low * 0.9 < (play.sampled - sampled) / new.sum() < play.high * 1.1
