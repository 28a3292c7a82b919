"""Several replay servers and one learner over real sockets: what is drawn, by which probability, and who gets the priorities."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from replay.client.base import ReplayRefused, SampledBatch
from replay.client.sharded import ShardedSampler
from replay.client.writer import ExperienceWriter
from replay.config import ReplayConfig, ReplayProcess
from replay.server.server import ReplayServer
from replay.shards import KEY_BITS, shard_of
from replay.table.layout import PRIORITY
from tests.harness.address import local_address
from tests.harness.waiting import wait_until
from tests.replay.examples import make_spec, stream_chunks
from tests.transport.columns import scalars
from transport.experience import ExperienceSpec
from transport.lifetime import new_incarnation
from transport.metrics import Metrics

SPEC = make_spec(length=4, stack=1, n_step=1, extras=scalars(PRIORITY))
FREE = ReplayConfig(
    min_size=1, capacity=4_000, samples_per_insert_low=0, samples_per_insert_high=math.inf, priority_exponent=1.0, shards=4
)
EVEN, SKEWED = (10, 10, 10, 10), (31, 6, 1, 2)  # chunks of each shard


class Shards:
    """Servers that turn whenever somebody waits."""

    def __init__(self, folder: Path, config: ReplayConfig = FREE, spec: ExperienceSpec = SPEC) -> None:
        self.spec, self.config, self.metrics = spec, config, [Metrics() for _ in range(config.shards)]
        self.addresses = [local_address(folder, f"replay-{index}") for index in range(config.shards)]
        self.servers = [self.serve(index) for index in range(config.shards)]
        self.sampler: ShardedSampler | None = None

    def serve(self, index: int) -> ReplayServer:
        settings = ReplayProcess(index, self.config.of_one_shard, 1_000, index)
        return ReplayServer(self.spec, settings, self.addresses[index], new_incarnation(), self.metrics[index])

    def fill(self, chunks: Sequence[int]) -> None:
        """So many chunks into each shard, from one stream: item i has the priority i + 1."""
        stream = iter(stream_chunks(self.spec, {}, self.spec.chunk_length * (sum(chunks) + 1)))
        for server, count in zip(self.servers, chunks, strict=True):
            for _ in range(count):
                server.ring.insert(next(stream))

    def learn(self, batch_size: int = 32, min_size: int = 1, shared: bool = True, slots: int = 3) -> ShardedSampler:
        name, incarnation = "learner", new_incarnation()
        self.sampler = ShardedSampler(self.addresses, name, incarnation, self.spec, batch_size, slots, min_size, shared, seed=1)
        return self.sampler

    def turn(self) -> None:
        for server in self.servers:
            if server.socket.socket.poll(0) or server.learners.waiting or time.monotonic() > server._next_hold:
                server.turn(0.0)  # a turn without anything to do waits for a millisecond

    def until(self, true: Callable[[], object]) -> None:
        def turned() -> bool:
            self.turn()
            return bool(true())

        wait_until(turned, what="the shards", turn_seconds=0.0)

    def batch(self) -> SampledBatch:
        found: list[SampledBatch] = []
        assert (sampler := self.sampler) is not None
        self.until(lambda: found.extend(filter(None, [sampler.next(0.0)])) or found)
        return found[0]

    def keys(self) -> np.ndarray:
        """The keys of the next batch, its slot given back."""
        batch = self.batch()
        keys = batch.arrays["key"].copy()
        assert self.sampler is not None
        self.sampler.release(batch)
        return keys

    def skip_first(self) -> None:
        """Takes the batches that were drawn before all shards had answered."""
        assert (sampler := self.sampler) is not None

        def all_known() -> bool:
            if (batch := sampler.next(0.0)) is not None:
                sampler.release(batch)
            return all(shard.total for shard in sampler._shards)

        self.until(all_known)
        for _ in range(4):
            self.keys()

    def values(self, keys: Iterable[int]) -> list[float]:
        """What the shards hold of these items."""
        values = [server.ring.state().selector.values for server in self.servers]
        return [float(values[key >> KEY_BITS][key & (1 << KEY_BITS) - 1]) for key in keys]

    def close(self) -> None:
        for server in self.servers:
            server.close()
        if self.sampler is not None:
            self.sampler.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Shards]]:
    made: list[Shards] = []

    def maker(*arguments: object, **named: object) -> Shards:
        made.append(Shards(tmp_path, *arguments, **named))  # type: ignore[arg-type]
        return made[-1]

    yield maker
    for each in made:
        each.close()


def exceeded(statistic: float, freedom: int) -> float:
    """About the probability of a larger chi-square (Wilson and Hilferty 1931)."""
    deviation = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return math.erfc(deviation / math.sqrt(2)) / 2


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("chunks", [EVEN, SKEWED])
def test_items_are_drawn_as_from_one_table(make: Callable[..., Shards], chunks: Sequence[int], shared: bool) -> None:
    shards = make()
    shards.fill(chunks)
    sampler = shards.learn(batch_size=128, shared=shared)
    items = sum(chunks) * SPEC.chunk_length
    expected = np.arange(1, items + 1) / (items * (items + 1) / 2)
    seen = np.zeros(items)
    shards.skip_first()
    while seen.sum() < 40 * items:
        batch = shards.batch()
        item = batch.arrays["reward"][:, 0].astype(int) // 10  # the reward is ten times the position
        np.add.at(seen, item, 1)
        assert batch.arrays["probability"] == pytest.approx(expected[item])
        assert (batch.arrays["observation/position"][:, 0] == item).all(), "the rows of an item are of one shard"
        sampler.release(batch)
    statistic = float(((seen - expected * seen.sum()) ** 2 / (expected * seen.sum())).sum())
    assert exceeded(statistic, items - 1) > 0.01, statistic
    assert exceeded(float((seen * items / seen.sum() - 1) @ (seen - seen.sum() / items)), items - 1) < 1e-6, "it can fail"


@pytest.mark.parametrize("chunks", [EVEN, SKEWED])
@pytest.mark.parametrize("stale", [pytest.param((1.0, 1.0, 1.0, 1.0), marks=pytest.mark.slow), (1.4, 0.6, 1.2, 0.7)])
def test_means_by_importance_are_unbiased_also_where_totals_are_out_of_date(
    make: Callable[..., Shards], chunks: Sequence[int], stale: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = make()
    shards.fill(chunks)
    for server, factor in zip(shards.servers, stale, strict=True):
        true = server.ring.figures
        wrong = lambda true=true, factor=factor: msgspec.structs.replace(true(), total=true().total * factor)  # noqa: E731
        monkeypatch.setattr(server.ring, "figures", wrong)
    sampler = shards.learn(batch_size=64)
    items = sum(chunks) * SPEC.chunk_length
    shards.skip_first()
    means = []
    for _ in range(1000):  # what is drawn depends on who answers first, so chance must never reach the limit below
        batch = shards.batch()
        value = np.sin(batch.arrays["reward"][:, 0] / 10)
        means.append(float((value / batch.arrays["probability"]).mean()) / items)
        sampler.release(batch)
    error = np.std(means) / math.sqrt(len(means))
    assert abs(np.mean(means) - np.sin(np.arange(items)).mean()) < 4.5 * error


@pytest.mark.parametrize("together", [True, False])
def test_priorities_go_back_to_the_shard_that_has_the_item(make: Callable[..., Shards], together: bool) -> None:
    shards = make()
    shards.fill(EVEN)
    sampler = shards.learn()
    known: dict[int, float] = {}
    for number in range(30):
        batch = shards.batch()
        key, item = batch.arrays["key"].copy(), batch.arrays["reward"][:, 0] // 10
        assert ((key >> KEY_BITS) == item // 40).all(), "the key names the shard"
        new = (np.arange(len(key)) + 32 * number + 1_000).astype(np.float32)
        known.update(zip(key.tolist(), new.tolist(), strict=True))
        if together:
            sampler.answer(batch, new)
        else:
            sampler.update_priorities(key, new)
            sampler.release(batch)
    # The last answers are sent when no batch is ready.
    shards.until(lambda: (shards.keys(), shards.values(known) == list(known.values()))[1])
    assert sum(metrics.value("stale_priorities") for metrics in shards.metrics) == 0 == sampler.impossible


def test_the_last_priorities_of_a_sampler_that_closes_arrive(make: Callable[..., Shards]) -> None:
    shards = make()
    shards.fill(EVEN)
    sampler, batch = shards.learn(), shards.batch()
    keys = batch.arrays["key"].tolist()
    sampler.answer(batch, np.full(len(keys), 7, np.float32))
    sampler.close()
    shards.sampler = None
    shards.until(lambda: set(shards.values(keys)) == {7})


def test_training_starts_when_all_shards_together_hold_enough(make: Callable[..., Shards]) -> None:
    shards = make()
    shards.fill((3, 0, 0, 0))
    sampler = shards.learn(batch_size=8, min_size=20)
    shards.until(lambda: sampler.next(0.0) or sampler._shards[0].total)
    assert not sampler._drawing and sampler.next(0.0) is None
    shards.fill((0, 2, 0, 0))
    owners = {int(owner) for _ in range(20) for owner in shards.keys() >> KEY_BITS}
    assert owners == {0, 1}


def test_training_starts_when_a_shard_is_full(make: Callable[..., Shards]) -> None:
    """All actors may happen to be of one shard, which alone cannot hold min_size."""
    shards = make(msgspec.structs.replace(FREE, capacity=64))
    shards.learn(batch_size=8, min_size=60)
    shards.fill((4, 0, 0, 0))
    assert len(shards.keys()) == 8


def test_the_band_holds_over_all_shards_and_one_without_actors_makes_nobody_wait(make: Callable[..., Shards]) -> None:
    band = msgspec.structs.replace(FREE, samples_per_insert_low=1.0, samples_per_insert_high=2.0)
    shards = make(band)
    shards.fill((10, 10, 0, 0))  # the actors of the first shard have left
    stream = stream_chunks(SPEC, {}, 8_000)
    sampler = shards.learn(batch_size=16)
    inserted = drawn = 0

    def inserts() -> bool:
        nonlocal inserted, drawn
        for index, server in ((1, shards.servers[1]), (2, shards.servers[2])):
            if server.ring.can_insert() and (index == 1 or inserted % 3 == 0):
                inserted += server.ring.insert(stream[inserted // SPEC.chunk_length])
        if (batch := sampler.next(0.0)) is not None:
            drawn += 16
            sampler.release(batch)
        return inserted > 2_000

    shards.until(lambda: sampler.next(0.0) is not None)
    shards.until(inserts)
    assert 0.8 < drawn / inserted < 2.3


def test_the_learner_hears_what_each_shard_has_collected_since_its_start(make: Callable[..., Shards]) -> None:
    shards = make()
    shards.fill(EVEN)
    for number, server in enumerate(shards.servers, 1):
        server._metrics.count("inserted_steps", 10 * number)  # the tables were filled without it
    sampler = shards.learn()
    shards.skip_first()
    assert sampler.steps == [10 * number for number in range(1, len(shards.servers) + 1)]


def test_a_restarted_shard_counts_as_empty_until_it_holds_items_again(make: Callable[..., Shards]) -> None:
    shards = make()
    shards.fill(EVEN)
    sampler = shards.learn()
    for _ in range(10):
        sampler.release(shards.batch())
    shards.servers[2].close()
    shards.servers[2] = shards.serve(2)  # without a log it has lost its items

    def welcomed() -> bool:
        if (batch := sampler.next(0.0)) is not None:
            sampler.release(batch)
        figures = sampler._shards[2].figures
        return figures is not None and figures.items == 0

    shards.until(welcomed)
    for _ in range(4):
        shards.keys()
    assert not any((shards.keys() >> KEY_BITS == 2).any() for _ in range(10))
    chunk = stream_chunks(SPEC, {}, 8)[0]
    shards.servers[2].ring.insert(chunk)
    shards.servers[2].ring.update_priorities(np.arange(4) + (2 << KEY_BITS), np.full(4, 1e6))
    shards.until(lambda: (shards.keys() >> KEY_BITS == 2).any())


def test_a_client_of_another_number_of_shards_or_of_another_shard_is_refused(make: Callable[..., Shards]) -> None:
    """An actor that has outlived `headrace reshard` would send again what another shard has."""
    shards = make()
    sampler = shards.sampler = ShardedSampler(shards.addresses[:2], "learner", new_incarnation(), SPEC, 8, 2, 1)
    wrong, right = (shard_of("actor-0", 4).index + 1) % 4, shard_of("actor-0", 4)
    writer = ExperienceWriter(shards.addresses[wrong], "actor-0", new_incarnation(), SPEC, 1)
    other_number = "learner was started for 2 replay shards, here are 4: start both from the same run folder"
    other_shard = f"actor-0 belongs to {right.name}, this is replay-{wrong}: export its folder again"
    for reads, reason in ((lambda: sampler.next(0.0), other_number), (writer.poll, other_shard)):
        with pytest.raises(ReplayRefused, match=reason):
            shards.until(reads)
    writer.close()


def test_two_learner_processes_draw_from_the_same_shards(make: Callable[..., Shards]) -> None:
    shards = make()
    shards.fill(SKEWED)
    first = shards.learn(batch_size=32)
    second = ShardedSampler(shards.addresses, "learner-1", new_incarnation(), SPEC, 16, 2, 1, seed=2)
    drawn = {first: 0, second: 0}

    def both() -> bool:
        for sampler in drawn:
            if (batch := sampler.next(0.0)) is not None:
                assert ((batch.arrays["key"] >> KEY_BITS) < 4).all() and (batch.arrays["probability"] > 0).all()
                sampler.answer(batch, np.ones(len(batch.arrays["key"]), np.float32))
                drawn[sampler] += 1
        return min(drawn.values()) > 20

    shards.until(both)
    assert [server.learners.count for server in shards.servers] == [2] * 4
    second.close()


def test_sequences_are_drawn_from_all_shards_by_their_priorities(make: Callable[..., Shards]) -> None:
    spec = make_spec(length=4, stack=1, n_step=1, extras=scalars(PRIORITY), unit="sequences")
    shards = make(FREE, spec)
    shards.fill(SKEWED)
    sampler = shards.learn(batch_size=16)
    shards.skip_first()
    chunks = sum(SKEWED)
    values = 4.0 * (np.arange(chunks) + 1)  # the highest priority of its items
    for _ in range(20):
        batch = shards.batch()
        chunk = batch.arrays["reward"][:, 0].astype(int) // 40
        assert batch.arrays["probability"] == pytest.approx(values[chunk] / values.sum())
        assert (batch.arrays["observation/position"][:, :4] == 4 * chunk[:, None] + np.arange(4)).all()
        sampler.release(batch)
