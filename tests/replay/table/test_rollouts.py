"""Whole chunks, each drawn once, over a real socket: acknowledged when drawn, credit for a batch, age."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from replay.__main__ import describe_rollouts
from replay.client.base import ReplayRefused, SampledBatch
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


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    with Link(tmp_path, SPEC, CONFIG) as made:
        yield made


class Feeder:
    """An actor: sends chunks in order, as far as it has credit."""

    def __init__(self, writer: ExperienceWriter, chunks: list[Chunk]) -> None:
        self.writer, self.chunks, self.sent = writer, chunks, 0

    def feed(self) -> int:
        """Returns how many it has sent so far."""
        while self.writer.has_credit and self.sent < len(self.chunks):
            self.writer.insert(self.chunks[self.sent])
            self.sent += 1
        return self.sent


def drawn(batch: SampledBatch, spec: ExperienceSpec = SPEC) -> list[dict[str, np.ndarray]]:
    """The rollouts of a batch, each cut to its rows and copied; what lies behind must be zero."""
    rollouts = []
    for b, length in enumerate(batch.arrays["length"].tolist()):
        arrays = {column.name: batch.arrays[array_name(spec, column)][b] for column in spec.resting}
        assert not any(array[spec.rows(length) :].any() for array in arrays.values())
        rollouts.append({name: array[: spec.rows(length)].copy() for name, array in arrays.items()})
    return rollouts


def same(rollout: dict[str, np.ndarray], chunk: Chunk) -> bool:
    """Byte for byte."""
    return all(rollout[name].tobytes() == chunk.columns[name].tobytes() for name in rollout)


def take(link: Link, sampler: Sampler, *feeders: Feeder, spec: ExperienceSpec = SPEC) -> list[dict[str, np.ndarray]]:
    """The rollouts of the next batch, its slot given back."""
    found: list[SampledBatch] = []

    def turn() -> bool:
        for feeder in feeders:
            feeder.feed()
        if batch := sampler.next(0):
            found.append(batch)
        return bool(found)

    link.until(turn, *(feeder.writer for feeder in feeders))
    rollouts = drawn(found[0], spec)
    sampler.release(found[0])
    return rollouts


@pytest.mark.parametrize("shared", [True, False])
def test_rollouts_are_the_chunks_byte_for_byte_in_order_and_once(link: Link, shared: bool) -> None:
    link.serve()
    feeder, sampler = Feeder(link.writer(), CHUNKS), link.sampler(shared, slots=1, batch_size=3)
    found = [rollout for _ in range(len(CHUNKS) // 3) for rollout in take(link, sampler, feeder)]
    assert all_same(found, CHUNKS[: len(found)])
    assert link.metrics.value("duplicates") == link.metrics.value("dropped_chunks") == 0


def all_same(rollouts: list[dict[str, np.ndarray]], chunks: list[Chunk]) -> bool:
    return len(rollouts) == len(chunks) and all(map(same, rollouts, chunks))


def test_short_chunks_end_in_zeros_and_keep_the_row_to_bootstrap_from(link: Link) -> None:
    link.serve()
    short = stream_chunks(SPEC, {}, 6)  # 4 items, then 2 and the row that ends the stream
    feeder, sampler = Feeder(link.writer(streams=3), [CHUNKS[0], *short]), link.sampler(slots=1, batch_size=3)
    found: list[SampledBatch] = []

    def turn() -> bool:
        feeder.feed()
        found.extend(batch for batch in [sampler.next(0)] if batch)
        return bool(found)

    link.until(turn, feeder.writer)
    arrays = found[0].arrays
    assert arrays["length"].tolist() == [4, 4, 2] and arrays["key"].tolist() == [0, 1, 2]
    assert arrays["observation/position"][2].tolist() == [2, 3, 4, 5, 6, 0, 0]  # history, items, the overhang, nothing
    assert arrays["valid"][2].tolist() == [1, 1, 1, 1, 0, 0, 0]
    assert arrays["log_prob"][2][4] == 0, "in a row without action"
    assert drawn(found[0])  # zeros behind


def test_pictures_and_every_other_column_arrive_as_they_left(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for codec in ("none", "lz4", "zstd"):
        fields = (
            observed("picture", (6, 5), "|u1", 1 / 255, codec=codec),
            observed("angle", (3,), "<f4"),
            observed("code", (), "<i8"),
        )  # type: ignore[arg-type]
        spec = ExperienceSpec(fields, Categorical(3), 8, 2, 3, unit="rollouts", extras=scalars("log_prob", "value"))
        chunks = [random_chunk(spec, length, generator) for length in generator.integers(1, 9, 24).tolist()]
        with Link(tmp_path, spec, CONFIG) as link:
            link.serve()
            feeder = Feeder(link.writer(streams=4), chunks)
            sampler = link.sampler(slots=2, batch_size=4)
            found = [rollout for _ in range(6) for rollout in take(link, sampler, feeder, spec=spec)]
            assert all_same(found, chunks)
            valid = sum(int(chunk.columns["valid"][1 : 1 + chunk.length].sum()) for chunk in chunks)
            settle(link, feeder.writer)
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


def test_a_chunk_is_acknowledged_when_its_batch_is_drawn_and_not_before(link: Link) -> None:
    server = link.serve()
    writer = link.writer(streams=4)
    link.until(lambda: writer.has_credit, writer)
    for chunk in CHUNKS[:3]:
        writer.insert(chunk)
    link.until(lambda: len(server.inbox.pending) == 3, writer)
    sampler = link.sampler(slots=1, batch_size=4)
    link.until(lambda: (sampler.next(0), server.learners.waiting)[1], writer)
    settle(link, writer)
    assert writer.outstanding == 3 and sampler.next(0) is None, "three of four are no batch"
    writer.insert(CHUNKS[3])
    link.until(lambda: not writer.outstanding, writer)
    batch = sampler.next(60)
    assert batch is not None and all_same(drawn(batch), CHUNKS[:4])
    assert writer.acknowledged_steps == link.metrics.value("sampled_items")


def test_chunks_beyond_a_batch_stay_unacknowledged(link: Link) -> None:
    link.serve()
    feeder = Feeder(link.writer(streams=3), CHUNKS[:3])
    assert all_same(take(link, link.sampler(slots=1, batch_size=2), feeder), CHUNKS[:2])
    link.until(lambda: (feeder.feed(), feeder.writer.acknowledged_steps == 8)[1], feeder.writer)
    settle(link, feeder.writer)
    assert feeder.sent == 3 and feeder.writer.outstanding == 1


def settle(link: Link, *writers: ExperienceWriter) -> None:
    """Until everything that is on its way has come: a greeting that is answered came after it."""
    for writer in writers:
        writer.greet()
    link.until(lambda: all(writer.welcomed for writer in writers), *writers)


def share(link: Link, *writers: ExperienceWriter) -> None:
    """Until each of these has its share of the credit: the first that greets has all of it until the next does."""
    link.until(lambda: all(writer.has_credit for writer in writers), *writers)
    settle(link, *writers)


def test_the_second_chunk_of_one_stream_is_not_sent_before_the_first_is_drawn(link: Link) -> None:
    server = link.serve()
    sampler = link.sampler(slots=1, batch_size=2)
    one, other = Feeder(link.writer("actor-0"), CHUNKS), Feeder(link.writer("actor-1"), CHUNKS)
    both = (one, other)
    share(link, one.writer, other.writer)
    for drawn_batches in range(1, 6):
        batch: list[SampledBatch] = []

        def turn(batch: list[SampledBatch] = batch) -> bool:
            for feeder in both:
                feeder.feed()
            batch.extend(found for found in [sampler.next(0)] if found)
            return bool(batch)

        link.until(turn, one.writer, other.writer)
        # While the learner trains (its slot is not leased), each collects and sends the next chunk and no more.
        link.until(lambda: (one.feed(), other.feed(), len(server.inbox.pending) == 2)[2], one.writer, other.writer)
        settle(link, one.writer, other.writer)
        one.feed()
        other.feed()
        assert one.sent == other.sent == drawn_batches + 1
        assert not one.writer.has_credit and not other.writer.has_credit
        sampler.release(batch[0])


def test_without_a_learner_actors_wait_and_nothing_is_lost(link: Link) -> None:
    server = link.serve()
    feeder = Feeder(link.writer(streams=2), CHUNKS)
    link.until(lambda: (feeder.feed(), len(server.inbox.pending) == 2)[1], feeder.writer)
    settle(link, feeder.writer)
    feeder.feed()
    assert feeder.sent == 2 and not feeder.writer.has_credit
    assert all_same(take(link, link.sampler(slots=1, batch_size=2), feeder), CHUNKS[:2])


@pytest.mark.parametrize("seed", range(5))
def test_credit_together_is_never_less_than_a_batch_and_exactly_one_where_every_stream_has_a_chunk_in_it(seed: int) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(300):
        lag, batch = int(generator.integers(1, 4)), int(generator.integers(1, 200))
        config = ReplayConfig(max_policy_lag=lag, receive_bytes=int(generator.choice([1_000_000, 256_000_000])))
        rollouts = RolloutQueue(SPEC, config, Inbox(), Metrics(), 0)
        writers = [Writer(f"actor-{n}", n, int(generator.integers(1, 20)), b"", 0, 0) for n in range(generator.integers(1, 12))]
        rollouts.learners_changed(batch, 1)
        rollouts.writers_changed(writers)
        credit, streams = sum(map(rollouts.credit_chunks, writers)), sum(writer.streams for writer in writers)
        assert credit >= batch
        if batch >= streams:
            assert credit == lag * batch
        else:
            assert credit <= lag * streams + len(writers)


def test_the_least_receive_budget_does_not_stop_a_run() -> None:
    wide = make_spec(length=65_536)
    rollouts = RolloutQueue(wide, ReplayConfig(receive_bytes=1_000_000), Inbox(), Metrics(), 0)
    writers = [Writer(f"actor-{n}", n, 3, b"", 0, 0) for n in range(5)]
    rollouts.learners_changed(4, 1)
    rollouts.writers_changed(writers)
    assert sum(map(rollouts.credit_chunks, writers)) >= 4 and min(map(rollouts.credit_chunks, writers)) >= 1


def marked(mark: int) -> list[Chunk]:
    """CHUNKS that can be told apart from those of other actors."""
    return [replace(chunk, columns=chunk.columns | {"reward": chunk.columns["reward"] + 1e4 * mark}) for chunk in CHUNKS]


def test_actors_that_are_killed_return_or_join_never_leave_both_sides_waiting(link: Link) -> None:
    link.serve()
    sampler = link.sampler(slots=1, batch_size=7)
    feeders = [Feeder(link.writer(f"actor-{n}", streams=n + 1), marked(n)) for n in range(3)]
    found = take(link, sampler, *feeders)
    killed = feeders.pop()  # half of all streams
    killed.writer.client.close()
    link.opened.remove(killed.writer)
    for _ in range(3):
        found += take(link, sampler, *feeders)
    feeders.append(Feeder(link.writer("actor-2", streams=3), marked(4)))  # another incarnation
    feeders.append(Feeder(link.writer("actor-3", streams=5), marked(5)))
    for _ in range(3):
        found += take(link, sampler, *feeders)
    assert len(found) == 49 and link.metrics.value("gaps") == link.metrics.value("duplicates") == 0
    for feeder in feeders:  # what was drawn of each: once, in order, from the first on
        mine = [rollout for rollout in found if any(same(rollout, chunk) for chunk in feeder.chunks)]
        assert mine and all_same(mine, feeder.chunks[: len(mine)])
    lost = [rollout for rollout in found if any(same(rollout, chunk) for chunk in killed.chunks)]
    assert all_same(lost, killed.chunks[: len(lost)])


def test_a_new_replay_server_gets_the_chunks_that_were_not_drawn(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    link.tell_time(monkeypatch)
    server = link.serve()
    sampler = link.sampler(slots=1, batch_size=2)
    feeder = Feeder(link.writer(streams=2), CHUNKS)
    found = take(link, sampler, feeder)
    for _ in range(3):
        link.until(lambda: (feeder.feed(), not feeder.writer.has_credit)[1], feeder.writer)
        server = link.serve()  # whatever waited in the one before is gone
        found += take(link, sampler, feeder)
        found += take(link, sampler, feeder)
    assert all_same(found, CHUNKS[: len(found)]) and server is link.server


def test_a_new_learner_gets_the_chunks_in_the_slot_of_the_old_one(link: Link) -> None:
    server = link.serve()
    feeder = Feeder(link.writer(streams=3), CHUNKS[:2])
    old = link.sampler(slots=1, batch_size=3)
    link.until(lambda: (feeder.feed(), old.next(0), server.table._filled == 2)[2], feeder.writer)  # type: ignore[attr-defined]
    old.close()
    link.opened.remove(old)
    new = link.sampler(slots=1, batch_size=3)
    link.until(lambda: (new.next(0), new._server is not None)[1])  # else the third chunk may come first, and go to the old one
    feeder.chunks = CHUNKS
    assert all_same(take(link, new, feeder), CHUNKS[:3])


def test_a_learner_that_greets_again_is_served_under_its_new_requests(link: Link) -> None:
    server = link.serve()
    sampler, feeder = link.sampler(slots=1, batch_size=2), Feeder(link.writer(streams=2), CHUNKS)
    link.until(lambda: (sampler.next(0), server.learners.waiting)[1], feeder.writer)
    sampler._server = None  # as after a long silence
    sampler.greet()
    link.until(lambda: (sampler.next(0), sampler._server is not None)[1], feeder.writer)
    assert all_same(take(link, sampler, feeder), CHUNKS[:2])


def test_rollouts_that_are_too_old_are_dropped_acknowledged_and_counted(link: Link) -> None:
    def versions(chunk: Chunk) -> np.ndarray:
        items = slice(SPEC.history, SPEC.history + chunk.length)
        return chunk.columns["policy_version"][items][chunk.columns["valid"][items] != 0]

    def newest(chunk: Chunk) -> int:
        return int(versions(chunk).max())

    link.serve()
    sampler, feeder = link.sampler(slots=1, batch_size=2), Feeder(link.writer(streams=2), CHUNKS)
    sampler.oldest_version = 12  # versions are steps here
    since = [next(n for n, chunk in enumerate(CHUNKS) if newest(chunk) >= version) for version in (12, 100)]
    assert 0 < since[0] and since[0] + 4 < since[1]
    assert all_same(take(link, sampler, feeder), CHUNKS[since[0] :][:2])
    assert link.metrics.value("dropped_chunks") == since[0]
    assert link.metrics.value("dropped_steps") == sum(len(versions(chunk)) for chunk in CHUNKS[: since[0]]), "steps of the run"
    sampler.oldest_version = 100  # from the next request on
    assert all_same(take(link, sampler, feeder), CHUNKS[since[0] + 2 :][:2])
    assert all_same(take(link, sampler, feeder), CHUNKS[since[1] :][:2])
    assert link.metrics.value("dropped_chunks") == since[1] - 4
    link.until(lambda: feeder.writer.outstanding <= 2, feeder.writer)


def test_a_chunk_dropped_behind_a_waiting_one_gives_its_credit_back(link: Link) -> None:
    """Acknowledgements are cumulative: the older chunk is not drawn yet, so the newer one cannot be acknowledged."""
    server = link.serve()
    sampler, writer = link.sampler(slots=1, batch_size=2), link.writer(streams=2)
    link.until(lambda: writer.has_credit, writer)
    send = writer.client.send

    def damaging(message: object, parts: object = ()) -> bool:
        if isinstance(message, Insert) and message.sequence in (1, 2):
            parts = [bytes([part[0] ^ 1]) + part[1:] for part in parts]  # type: ignore[attr-defined]
        return send(message, parts)  # type: ignore[arg-type]

    writer.client.send = damaging  # type: ignore[method-assign,assignment]
    feeder = Feeder(writer, CHUNKS[:4])
    assert all_same(take(link, sampler, feeder), [CHUNKS[0], CHUNKS[3]])
    link.until(lambda: not writer.outstanding, writer)
    assert link.metrics.value("rejected") == 2 and not server.inbox.pending
    link.until(lambda: writer.credit == SPEC.chunk_bytes + 1, writer)


def test_a_learner_that_wants_another_unit_is_refused_with_one_line(link: Link) -> None:
    link.serve()
    sampler = link.sampler(spec=msgspec.structs.replace(SPEC, unit="transitions"))
    with pytest.raises(ReplayRefused, match="has another experience spec") as refusal:
        link.until(lambda: sampler.next(0) is not None)
    assert "\n" not in str(refusal.value)


def test_nothing_is_logged(link: Link, tmp_path: Path) -> None:
    link.serve(folder=tmp_path / "log")
    take(link, link.sampler(slots=1, batch_size=2), Feeder(link.writer(streams=2), CHUNKS))
    assert not (tmp_path / "log").exists()


def test_the_line_shows_waiting_and_dropped_chunks(link: Link) -> None:
    server = link.serve()
    sampler = link.sampler(slots=1, batch_size=4)
    feeder = Feeder(link.writer(streams=4), CHUNKS[:7])
    take(link, sampler, feeder)
    link.until(lambda: (feeder.feed(), len(server.inbox.pending) == 3)[1], feeder.writer)
    server.measure()
    line = describe_rollouts(link.metrics.record() | {"dropped_chunks": 1_234.0})
    assert re.fullmatch(
        r"in [\d,]+ steps/s · out [\d,]+ items/s · waiting chunks 3/4 · dropped 1,234 · duplicates 0 · rejected 0"
        r" · actors blocked \d+% · learner blocked \d+%",
        line,
    )


def test_a_budget_too_small_for_a_batch_is_refused_in_one_line() -> None:
    config = ReplayConfig(budget_bytes=130_000_000, receive_bytes=1_000_000)
    RolloutQueue(SPEC, config, Inbox(), Metrics(), leased=10)
    with pytest.raises(ValueError, match=r"^replay.budget_bytes 130,000,000 .* raise it, or lower replay.receive_bytes$"):
        RolloutQueue(SPEC, config, Inbox(), Metrics(), leased=1_000_000)


def test_two_learners_draw_every_rollout_once_and_their_batches_together_are_the_credit(link: Link) -> None:
    server = link.serve()
    samplers = [link.sampler(slots=1, batch_size=2, name=name) for name in ("learner", "learner-1")]
    feeder = Feeder(link.writer(), CHUNKS)
    link.until(lambda: server.learners.count == 2, feeder.writer)
    found: list[dict[str, np.ndarray]] = []
    while len(found) + 4 <= len(CHUNKS):
        # No learner learns (no slot is leased) before both have their batch; then both give it back, as processes in step do.
        batches: dict[int, SampledBatch] = {}

        def turn(batches: dict[int, SampledBatch] = batches) -> bool:
            feeder.feed()
            for place, sampler in enumerate(samplers):
                if place not in batches and (batch := sampler.next(0)):
                    batches[place] = batch
            return len(batches) == 2

        link.until(turn, feeder.writer)
        drawn_now = sum((drawn(batch) for _, batch in sorted(batches.items(), key=lambda each: each[1].arrays["key"][0])), [])
        found += drawn_now
        wanted = min(len(found) + 4, len(CHUNKS))

        def collected(wanted: int = wanted) -> bool:
            return feeder.feed() >= wanted

        link.until(collected, feeder.writer)
        settle(link, feeder.writer)
        assert feeder.feed() == wanted, "two batches of two are under way, and no more"
        for place, batch in batches.items():
            samplers[place].release(batch)
    assert all_same(found, CHUNKS[: len(found)])
    assert link.metrics.value("duplicates") == link.metrics.value("dropped_chunks") == 0


def test_chunks_in_the_half_filled_slot_of_a_lost_learner_go_to_the_other(link: Link) -> None:
    server = link.serve()
    dies = link.sampler(slots=1, batch_size=3, name="learner-1")
    feeder = Feeder(link.writer(streams=2), CHUNKS[:2])
    link.until(lambda: (feeder.feed(), len(server.inbox.pending) == 2)[1], feeder.writer)
    assert dies.next(0) is None
    stays = link.sampler(slots=1, batch_size=2)
    link.until(lambda: server.learners.count == 2, feeder.writer)
    dies.close()
    link.opened.remove(dies)
    assert all_same(take(link, stays, feeder), CHUNKS[:2])
