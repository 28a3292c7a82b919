"""Whole chunks, each drawn once, over a real socket: acknowledged when drawn, credit for a batch, age."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay.__main__ import describe_rollouts
from replay.client.base import SampledBatch
from replay.client.sampler import Sampler
from replay.client.writer import ExperienceWriter
from replay.config import ReplayConfig
from replay.table.inbox import Inbox, Writer
from replay.table.layout import array_name
from replay.table.rollout_queue import RolloutQueue
from tests.harness.link import Link
from tests.replay.examples import make_spec, stream_chunks
from tests.transport.columns import scalars
from transport.experience import Categorical, Chunk, ExperienceSpec, observed
from transport.messages.replay import Insert
from transport.metrics import Metrics

SPEC = make_spec(length=4, stack=3, n_step=1, extras=scalars("log_prob"), unit="rollouts")
CHUNKS = stream_chunks(SPEC, {9: "truncated", 17: "terminated"}, 161)
CONFIG = ReplayConfig(capacity=4_000)
Rollout = dict[str, np.ndarray]


class Play(Link):
    """A link whose actors send their chunks in order, as far as they have credit."""

    def actor(self, chunks: list[Chunk] = CHUNKS, name: str = "actor-0", streams: int = 1) -> Feeder:
        return Feeder(self.writer(name, streams=streams), chunks)

    def wait(self, true: Any, *feeders: Feeder) -> None:
        """Until it is true; the actors send meanwhile."""
        self.until(lambda: ([feeder.feed() for feeder in feeders], true())[1], *(feeder.writer for feeder in feeders))

    def settle(self, *feeders: Feeder) -> None:
        """Until everything that is on its way has come: a greeting that is answered came after it."""
        for feeder in feeders:
            feeder.writer.greet()
        self.wait(lambda: all(feeder.writer.welcomed for feeder in feeders), *feeders)

    def draw(self, sampler: Sampler, *feeders: Feeder) -> SampledBatch:
        found: list[SampledBatch] = []
        self.wait(lambda: found.extend(filter(None, [sampler.next(0)])) or found, *feeders)
        return found[0]

    def take(self, sampler: Sampler, *feeders: Feeder) -> list[Rollout]:
        """The rollouts of the next batch, its slot given back."""
        batch = self.draw(sampler, *feeders)
        rollouts = contents(batch, self.spec)
        sampler.release(batch)
        return rollouts


class Feeder:
    """An actor."""

    def __init__(self, writer: ExperienceWriter, chunks: list[Chunk]) -> None:
        self.writer, self.chunks, self.sent = writer, chunks, 0

    def feed(self) -> int:
        """Returns how many it has sent so far."""
        while self.writer.has_credit and self.sent < len(self.chunks):
            self.writer.insert(self.chunks[self.sent])
            self.sent += 1
        return self.sent


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Play]:
    with Play(tmp_path, SPEC, CONFIG) as made:
        yield made


def contents(batch: SampledBatch, spec: ExperienceSpec = SPEC) -> list[Rollout]:
    """The rollouts of a batch, each cut to its rows and copied; what lies behind must be zero."""
    rollouts = []
    for b, length in enumerate(batch.arrays["length"].tolist()):
        arrays = {column.name: batch.arrays[array_name(spec, column)][b] for column in spec.resting}
        assert not any(array[spec.rows(length) :].any() for array in arrays.values())
        rollouts.append({name: array[: spec.rows(length)].copy() for name, array in arrays.items()})
    return rollouts


def same(rollout: Rollout, chunk: Chunk) -> bool:
    """Byte for byte."""
    return all(rollout[name].tobytes() == chunk.columns[name].tobytes() for name in rollout)


def all_same(rollouts: list[Rollout], chunks: list[Chunk]) -> bool:
    return len(rollouts) == len(chunks) and all(map(same, rollouts, chunks))


@pytest.mark.parametrize("shared", [True, False])
def test_rollouts_are_the_chunks_byte_for_byte_in_order_and_once_and_nothing_is_logged(
    link: Play, shared: bool, tmp_path: Path
) -> None:
    link.serve(folder=tmp_path / "log")
    feeder, sampler = link.actor(), link.sampler(shared, slots=1, batch_size=3)
    found = [rollout for _ in range(len(CHUNKS) // 3) for rollout in link.take(sampler, feeder)]
    assert all_same(found, CHUNKS[: len(found)])
    assert link.metrics.value("duplicates") == link.metrics.value("dropped_chunks") == 0
    assert not (tmp_path / "log").exists()


def test_short_chunks_end_in_zeros_and_keep_the_row_to_bootstrap_from(link: Play) -> None:
    link.serve()
    short = stream_chunks(SPEC, {}, 6)  # 4 items, then 2 and the row that ends the stream
    batch = link.draw(link.sampler(slots=1, batch_size=3), link.actor([CHUNKS[0], *short], streams=3))
    arrays = batch.arrays
    assert arrays["length"].tolist() == [4, 4, 2] and arrays["key"].tolist() == [0, 1, 2]
    assert arrays["observation/position"][2].tolist() == [2, 3, 4, 5, 6, 0, 0]  # history, items, the overhang, nothing
    assert arrays["valid"][2].tolist() == [1, 1, 1, 1, 0, 0, 0]
    assert arrays["log_prob"][2][4] == 0, "in a row without action"
    assert contents(batch)  # zeros behind


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_pictures_and_every_other_column_arrive_as_they_left(tmp_path: Path, codec: Any) -> None:
    generator = np.random.default_rng(0)
    picture = observed("picture", (6, 5), "|u1", 1 / 255, codec=codec)
    fields = picture, observed("angle", (3,), "<f4"), observed("code", (), "<i8")
    spec = ExperienceSpec(fields, Categorical(3), 8, 2, 3, unit="rollouts", extras=scalars("log_prob", "value"))
    chunks = [random_chunk(spec, length, generator) for length in generator.integers(1, 9, 24).tolist()]
    with Play(tmp_path, spec, CONFIG) as link:
        link.serve()
        feeder, sampler = link.actor(chunks, streams=4), link.sampler(slots=2, batch_size=4)
        found = [rollout for _ in range(6) for rollout in link.take(sampler, feeder)]
        assert all_same(found, chunks)
        valid = sum(int(chunk.columns["valid"][1 : 1 + chunk.length].sum()) for chunk in chunks)
        link.settle(feeder)
        assert not feeder.writer.outstanding
        assert link.metrics.value("sampled_items") == link.metrics.value("inserted_steps") == valid


def random_chunk(spec: ExperienceSpec, length: int, generator: np.random.Generator) -> Chunk:
    """Any bytes that a chunk may have."""
    rows = spec.rows(length)
    columns = {
        column.name: generator.integers(0, 2, (rows, *column.shape)).astype(column.dtype)
        if column.dtype.startswith("<i") or column.name in ("valid", "terminated", "truncated")
        else (generator.random((rows, *column.shape)) * 255).astype(column.dtype)
        for column in spec.columns
    }
    return Chunk(0, length, columns)


def test_a_chunk_is_acknowledged_when_its_batch_is_drawn_and_not_before(link: Play) -> None:
    server, feeder = link.serve(), link.actor(CHUNKS[:3], streams=4)
    link.wait(lambda: len(server.inbox.pending) == 3, feeder)
    sampler = link.sampler(slots=1, batch_size=4)
    link.wait(lambda: (sampler.next(0), server.learners.waiting)[1], feeder)
    link.settle(feeder)
    assert feeder.writer.outstanding == 3 and sampler.next(0) is None, "three of four are no batch"
    feeder.chunks = CHUNKS[:4]
    link.wait(lambda: feeder.sent == 4 and not feeder.writer.outstanding, feeder)
    batch = sampler.next(60)
    assert batch is not None and all_same(contents(batch), CHUNKS[:4])
    assert feeder.writer.acknowledged_steps == link.metrics.value("sampled_items")
    feeder.chunks = CHUNKS[:9]
    sampler.release(batch)
    link.wait(lambda: feeder.sent == 9 and feeder.writer.outstanding == 1, feeder)
    link.settle(feeder)
    assert feeder.writer.outstanding == 1, "a chunk beyond the batch stays unacknowledged"


def test_the_second_chunk_of_one_stream_is_not_sent_before_the_first_is_drawn(link: Play) -> None:
    server, sampler = link.serve(), link.sampler(slots=1, batch_size=2)
    both = one, other = link.actor(), link.actor(name="actor-1")
    # The first that greets has all of the credit until the next does.
    link.until(lambda: one.writer.has_credit and other.writer.has_credit, one.writer, other.writer)
    for feeder in both:
        feeder.writer.greet()
    link.until(lambda: one.writer.welcomed and other.writer.welcomed, one.writer, other.writer)
    for drawn_batches in range(1, 6):
        batch = link.draw(sampler, *both)
        # While the learner trains (its slot is not leased), each collects and sends the next chunk and no more.
        link.wait(lambda: len(server.inbox.pending) == 2, *both)
        link.settle(*both)
        assert one.feed() == other.feed() == drawn_batches + 1
        assert not one.writer.has_credit and not other.writer.has_credit
        sampler.release(batch)


def test_without_a_learner_actors_wait_and_nothing_is_lost(link: Play) -> None:
    server, feeder = link.serve(), link.actor(streams=2)
    link.wait(lambda: len(server.inbox.pending) == 2, feeder)
    link.settle(feeder)
    assert feeder.feed() == 2 and not feeder.writer.has_credit
    assert all_same(link.take(link.sampler(slots=1, batch_size=2), feeder), CHUNKS[:2])


def queue(config: ReplayConfig, batch: int, streams: list[int], spec: ExperienceSpec = SPEC) -> tuple[RolloutQueue, list[int]]:
    """A queue without sockets, and the chunks of credit of each of its writers."""
    rollouts = RolloutQueue(spec, config, Inbox(), Metrics(), 0)
    writers = [Writer(f"actor-{n}", n, count, b"", 0, 0) for n, count in enumerate(streams)]
    rollouts.learners_changed(batch, 1)
    rollouts.writers_changed(writers)
    return rollouts, [rollouts.credit_chunks(writer) for writer in writers]


@pytest.mark.parametrize("seed", range(5))
def test_credit_together_is_never_less_than_a_batch_and_exactly_one_where_every_stream_has_a_chunk_in_it(seed: int) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(300):
        lag, batch = int(generator.integers(1, 4)), int(generator.integers(1, 200))
        config = ReplayConfig(max_policy_lag=lag, receive_bytes=int(generator.choice([1_000_000, 256_000_000])))
        streams = generator.integers(1, 20, generator.integers(1, 12)).tolist()
        credit = sum(queue(config, batch, streams)[1])
        assert credit >= batch
        if batch >= sum(streams):
            assert credit == lag * batch
        else:
            assert credit <= lag * sum(streams) + len(streams)


def test_the_least_receive_budget_does_not_stop_a_run_and_one_too_small_for_a_batch_is_refused_in_one_line() -> None:
    _, credit = queue(ReplayConfig(receive_bytes=1_000_000), 4, [3] * 5, make_spec(length=65_536))
    assert sum(credit) >= 4 and min(credit) >= 1
    config = ReplayConfig(budget_bytes=130_000_000, receive_bytes=1_000_000)
    RolloutQueue(SPEC, config, Inbox(), Metrics(), leased=10)
    with pytest.raises(ValueError, match=r"^replay.budget_bytes 130,000,000 .* raise it, or lower replay.receive_bytes$"):
        RolloutQueue(SPEC, config, Inbox(), Metrics(), leased=1_000_000)


def marked(mark: int) -> list[Chunk]:
    """CHUNKS that can be told apart from those of other actors."""
    return [replace(chunk, columns=chunk.columns | {"reward": chunk.columns["reward"] + 1e4 * mark}) for chunk in CHUNKS]


def test_actors_that_are_killed_return_or_join_never_leave_both_sides_waiting(link: Play) -> None:
    link.serve()
    sampler = link.sampler(slots=1, batch_size=7)
    feeders = [link.actor(marked(n), f"actor-{n}", n + 1) for n in range(3)]
    found = link.take(sampler, *feeders)
    killed = feeders.pop()  # half of all streams
    killed.writer.client.close()
    link.opened.remove(killed.writer)
    for _ in range(3):
        found += link.take(sampler, *feeders)
    feeders += [link.actor(marked(4), "actor-2", 3), link.actor(marked(5), "actor-3", 5)]  # another incarnation, and a new one
    for _ in range(3):
        found += link.take(sampler, *feeders)
    assert len(found) == 49 and link.metrics.value("gaps") == link.metrics.value("duplicates") == 0
    for feeder in (*feeders, killed):  # what was drawn of each: once, in order, from the first on
        mine = [rollout for rollout in found if any(same(rollout, chunk) for chunk in feeder.chunks)]
        assert (mine or feeder is killed) and all_same(mine, feeder.chunks[: len(mine)])


def test_a_new_replay_server_gets_the_chunks_that_were_not_drawn(link: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    link.tell_time(monkeypatch)
    link.serve()
    sampler, feeder = link.sampler(slots=1, batch_size=2), link.actor(streams=2)
    found = link.take(sampler, feeder)
    for _ in range(3):
        link.wait(lambda: not feeder.writer.has_credit, feeder)
        link.serve()  # whatever waited in the one before is gone
        found += link.take(sampler, feeder)
        found += link.take(sampler, feeder)
    assert all_same(found, CHUNKS[: len(found)])


def test_a_new_learner_gets_the_chunks_in_the_slot_of_the_old_one(link: Play) -> None:
    server, feeder = link.serve(), link.actor(CHUNKS[:2], streams=3)
    old = link.sampler(slots=1, batch_size=3)
    link.wait(lambda: (old.next(0), server.table._filled == 2)[1], feeder)  # type: ignore[attr-defined]
    link.leave(old)
    new = link.sampler(slots=1, batch_size=3)
    link.until(lambda: (new.next(0), new._server is not None)[1])  # or the third chunk may come first, and go to the old one
    feeder.chunks = CHUNKS
    assert all_same(link.take(new, feeder), CHUNKS[:3])


def test_a_learner_that_greets_again_is_served_under_its_new_requests(link: Play) -> None:
    server, sampler, feeder = link.serve(), link.sampler(slots=1, batch_size=2), link.actor([], streams=2)
    link.wait(lambda: (sampler.next(0), server.learners.waiting)[1], feeder)
    sampler._server = None  # as after a long silence
    sampler.greet()
    link.wait(lambda: (sampler.next(0), sampler._server is not None)[1], feeder)
    feeder.chunks = CHUNKS
    assert all_same(link.take(sampler, feeder), CHUNKS[:2])


def test_rollouts_that_are_too_old_are_dropped_acknowledged_and_counted(link: Play) -> None:
    def versions(chunk: Chunk) -> np.ndarray:
        items = slice(SPEC.history, SPEC.history + chunk.length)
        return chunk.columns["policy_version"][items][chunk.columns["valid"][items] != 0]

    link.serve()
    sampler, feeder = link.sampler(slots=1, batch_size=2), link.actor(streams=2)
    sampler.oldest_version = 12  # versions are steps here
    since = [next(n for n, chunk in enumerate(CHUNKS) if versions(chunk).max() >= version) for version in (12, 100)]
    assert 0 < since[0] and since[0] + 4 < since[1]
    assert all_same(link.take(sampler, feeder), CHUNKS[since[0] :][:2])
    assert link.metrics.value("dropped_chunks") == since[0]
    assert link.metrics.value("dropped_steps") == sum(len(versions(chunk)) for chunk in CHUNKS[: since[0]]), "steps of the run"
    sampler.oldest_version = 100  # from the next request on
    assert all_same(link.take(sampler, feeder), CHUNKS[since[0] + 2 :][:2])
    assert all_same(link.take(sampler, feeder), CHUNKS[since[1] :][:2])
    assert link.metrics.value("dropped_chunks") == since[1] - 4
    link.wait(lambda: feeder.writer.outstanding <= 2, feeder)


def test_a_chunk_dropped_behind_a_waiting_one_gives_its_credit_back(link: Play) -> None:
    """Acknowledgements are cumulative: the older chunk is not drawn yet, so the newer one cannot be acknowledged."""
    server, sampler, feeder = link.serve(), link.sampler(slots=1, batch_size=2), link.actor(CHUNKS[:4], streams=2)
    writer, send = feeder.writer, feeder.writer.client.send

    def damaging(message: Any, parts: Any = ()) -> bool:
        if isinstance(message, Insert) and message.sequence in (1, 2):
            parts = [bytes([part[0] ^ 1]) + part[1:] for part in parts]
        return send(message, parts)

    writer.client.send = damaging  # type: ignore[method-assign]
    assert all_same(link.take(sampler, feeder), [CHUNKS[0], CHUNKS[3]])
    link.wait(lambda: not writer.outstanding, feeder)
    assert link.metrics.value("rejected") == 2 and not server.inbox.pending
    link.wait(lambda: writer.credit == SPEC.chunk_bytes + 1, feeder)


def test_the_line_shows_waiting_and_dropped_chunks(link: Play) -> None:
    server, sampler, feeder = link.serve(), link.sampler(slots=1, batch_size=4), link.actor(CHUNKS[:7], streams=4)
    link.take(sampler, feeder)
    link.wait(lambda: len(server.inbox.pending) == 3, feeder)
    server.measure()
    line = describe_rollouts(link.metrics.record() | {"dropped_chunks": 1_234.0})
    assert re.fullmatch(
        r"in [\d,]+ steps/s · out [\d,]+ items/s · waiting chunks 3/4 · dropped 1,234 · duplicates 0 · rejected 0"
        r" · actors blocked \d+% · learner blocked \d+%",
        line,
    )


def test_two_learners_draw_every_rollout_once_and_their_batches_together_are_the_credit(link: Play) -> None:
    server = link.serve()
    samplers = [link.sampler(slots=1, batch_size=2, name=name) for name in ("learner", "learner-1")]
    feeder = link.actor(CHUNKS)
    link.until(lambda: server.learners.count == 2, feeder.writer)
    found: list[Rollout] = []
    while len(found) + 4 <= len(CHUNKS):
        # No learner learns (no slot is leased) before both have their batch; then both give it back, as processes in step do.
        batches = [link.draw(sampler, feeder) for sampler in samplers]
        for batch in sorted(batches, key=lambda batch: batch.arrays["key"][0]):
            found += contents(batch)
        wanted = min(len(found) + 4, len(CHUNKS))
        link.wait(lambda wanted=wanted: feeder.sent >= wanted, feeder)
        link.settle(feeder)
        assert feeder.feed() == wanted, "two batches of two are under way, and no more"
        for sampler, batch in zip(samplers, batches, strict=True):
            sampler.release(batch)
    assert all_same(found, CHUNKS[: len(found)])
    assert link.metrics.value("duplicates") == link.metrics.value("dropped_chunks") == 0


def test_chunks_in_the_half_filled_slot_of_a_lost_learner_go_to_the_other(link: Play) -> None:
    server, feeder = link.serve(), link.actor(CHUNKS[:2], streams=2)
    dies = link.sampler(slots=1, batch_size=3, name="learner-1")
    link.wait(lambda: len(server.inbox.pending) == 2, feeder)
    assert dies.next(0) is None
    stays = link.sampler(slots=1, batch_size=2)
    link.until(lambda: server.learners.count == 2, feeder.writer)
    link.leave(dies)
    assert all_same(link.take(stays, feeder), CHUNKS[:2])
