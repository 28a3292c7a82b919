"""Server and clients over a real socket: acknowledgement, resending, restart, hold, refusal."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from actors.config import ActorsConfig
from replay.__main__ import describe_items
from replay.client.base import SILENCE_SECONDS, ReplayRefused, SampledBatch
from replay.client.sampler import Sampler
from replay.config import ReplayConfig
from replay.server import writers
from replay.table.limiter import SPARE_SECONDS
from tests.harness.link import Link
from tests.harness.waiting import PATIENCE_SECONDS
from tests.replay.examples import make_spec, stream_chunks
from transport.experience import Categorical, Chunk, ExperienceSpec, observed
from transport.lifetime import new_incarnation
from transport.messages.codec import pack, unpack
from transport.messages.fields import MOST_STREAMS, PROTOCOL, MalformedMessage
from transport.messages.replay import Ack, Insert, WriterHello
from transport.sockets.channel import FRAME_BYTES

SPEC = make_spec(length=4, stack=1, n_step=1)
CHUNKS = stream_chunks(SPEC, {}, 400)
FREE = ReplayConfig(min_size=1, capacity=4_000, samples_per_insert_low=0, samples_per_insert_high=1e9)


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    with Link(tmp_path, SPEC, FREE) as made:
        yield made


def test_every_chunk_is_acknowledged_once_it_is_in_the_table(link: Link) -> None:
    server, writer = link.serve(), link.writer()
    link.until(lambda: writer.has_credit, writer)
    for chunk in CHUNKS[:5]:
        writer.insert(chunk)
    assert writer.outstanding == 5
    link.until(lambda: writer.outstanding == 0, writer)
    assert server.ring.inserted_items == 20 == writer.acknowledged_steps


@pytest.mark.parametrize("side", [100, 640])  # three parts, and more than a server takes for anything but a chunk
def test_a_part_above_the_frame_limit_is_cut_and_put_together_again(tmp_path: Path, side: int) -> None:
    spec = ExperienceSpec(
        (observed("picture", (side, side), "|u1", codec="lz4"), observed("position", (), "<f4")), Categorical(4), 16
    )
    noise = np.random.default_rng(0).integers(0, 256, (17, side, side), np.uint8)
    columns = {column.name: np.ones((17, *column.shape), column.dtype) for column in spec.columns} | {"picture": noise}
    with Link(tmp_path, spec, FREE) as link:
        server, writer = link.serve(folder=tmp_path / "log"), link.writer()
        link.until(lambda: writer.has_credit, writer)
        writer.insert(Chunk(0, 16, columns))
        parts = writer.unacknowledged[0].parts
        assert max(map(len, parts)) <= FRAME_BYTES and len(parts) == 1 + 17 * side * side // FRAME_BYTES
        link.until(lambda: writer.outstanding == 0, writer)
        assert (server.ring._storage.room(0)["picture"] == noise).all()
        server = link.serve(folder=tmp_path / "log")
        assert server.ring.size == 16 and (server.ring._storage.room(0)["picture"] == noise).all()


def test_a_chunk_whose_sizes_do_not_match_its_parts_is_rejected(link: Link) -> None:
    server, writer = link.serve(), link.writer()
    link.until(lambda: writer.has_credit, writer)
    writer.insert(CHUNKS[0])
    entry = writer.unacknowledged[0]
    link.until(lambda: writer.outstanding == 0, writer)
    peer = next(iter(server.writers.peers))
    wrong = msgspec.structs.replace(entry.message, sequence=1, sizes=(1, 2))
    server.writers.on_insert(peer, wrong, [b"".join(entry.parts)])  # type: ignore[arg-type]
    link.until(lambda: link.metrics.value("rejected") == 1, writer)
    assert server.ring.inserted_items == 4


def test_credit_runs_out_before_memory_does(link: Link) -> None:
    link.serve()
    writer = link.writer()
    link.until(lambda: writer.has_credit, writer)
    while writer.has_credit:
        writer.insert(CHUNKS[0])
    assert 8 <= writer.outstanding
    assert (writer.outstanding - 1) * SPEC.chunk_bytes < writer.credit


def test_unacknowledged_chunks_reach_the_next_server(link: Link) -> None:
    link.serve()
    writer = link.writer()
    link.until(lambda: writer.has_credit, writer)
    link.server.close()  # type: ignore[union-attr]
    link.server = None
    for chunk in CHUNKS[:6]:
        writer.insert(chunk)
    server = link.serve()
    link.until(lambda: writer.outstanding == 0, writer)
    assert server.ring.inserted_items == 24
    assert link.metrics.value("duplicates") == 0


@pytest.mark.parametrize("restarted", [False, True])
def test_a_lost_acknowledgement_is_repeated_after_the_next_greeting(
    link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    link.tell_time(monkeypatch)
    server, writer = link.serve(folder=tmp_path / "log"), link.writer()
    link.until(lambda: writer.has_credit, writer)
    send = server.socket.send

    def losing(peer: bytes, message: object, parts: object = ()) -> bool:
        return True if isinstance(message, Ack) else send(peer, message, parts)  # type: ignore[arg-type]

    server.socket.send = losing  # type: ignore[method-assign,assignment]
    for chunk in CHUNKS[:3]:
        writer.insert(chunk)
    link.until(lambda: server.ring.inserted_items == 12, writer)
    assert writer.outstanding == 3
    if restarted:
        server = link.serve(folder=tmp_path / "log")
    else:
        server.socket.send = send  # type: ignore[method-assign]
    link.until(lambda: writer.outstanding == 0, writer)
    writer.insert(CHUNKS[3])
    link.until(lambda: writer.outstanding == 0, writer)
    assert server.ring.size == 16 and link.metrics.value("gaps") == 0
    assert link.metrics.value("restored_steps") == (12 if restarted else 0)


def test_a_chunk_sent_twice_is_inserted_once(link: Link) -> None:
    server, writer = link.serve(), link.writer()
    link.until(lambda: writer.has_credit, writer)
    writer.insert(CHUNKS[0])
    entry = writer.unacknowledged[0]
    writer.client.send(entry.message, entry.parts)
    link.until(lambda: writer.outstanding == 0 and link.metrics.value("duplicates") == 1, writer)
    assert server.ring.inserted_items == 4


def test_a_lost_chunk_is_sent_again_and_order_is_kept(link: Link) -> None:
    server, writer = link.serve(), link.writer()
    link.until(lambda: writer.has_credit, writer)
    send, lost = writer.client.send, list[Insert]()

    def lossy(message: object, parts: object = ()) -> bool:
        if isinstance(message, Insert) and message.sequence == 2 and not lost:
            lost.append(message)
            return True
        return send(message, parts)  # type: ignore[arg-type]

    writer.client.send = lossy  # type: ignore[method-assign,assignment]
    for chunk in CHUNKS[:6]:
        writer.insert(chunk)
    link.until(lambda: writer.outstanding == 0, writer)
    assert lost and server.ring.inserted_items == 24 and link.metrics.value("gaps") == 1


def test_a_lost_last_chunk_is_sent_again_although_no_later_chunk_shows_the_gap(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.tell_time(monkeypatch)
    server, writer = link.serve(), link.writer()
    link.until(lambda: writer.has_credit, writer)
    send = writer.client.send
    writer.client.send = lambda message, parts=(): True  # type: ignore[method-assign,assignment]
    writer.insert(CHUNKS[0])
    writer.client.send = send  # type: ignore[method-assign]
    link.until(lambda: writer.outstanding == 0, writer)
    assert server.ring.inserted_items == 4 and link.metrics.value("duplicates") == 0


def test_a_greeting_answered_twice_sends_nothing_twice(link: Link) -> None:
    server, writer = link.serve(), link.writer()
    link.until(lambda: writer.has_credit, writer)
    writer.greet()
    writer.greet()
    link.until(lambda: writer.welcomed, writer)
    for chunk in CHUNKS[:6]:
        writer.insert(chunk)
    link.until(lambda: writer.outstanding == 0, writer)
    assert server.ring.inserted_items == 24 and link.metrics.value("duplicates") == 0


def test_a_peer_without_a_greeting_is_asked_to_greet(link: Link) -> None:
    server = link.serve()
    writer = link.writer()
    link.until(lambda: writer.has_credit, writer)
    server.writers.peers.clear()  # as if this were another server behind the same address
    writer.insert(CHUNKS[0])
    link.until(lambda: writer.outstanding == 0, writer)
    assert server.ring.inserted_items == 4


def test_while_the_limiter_blocks_nothing_is_resent_or_lost(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = link.tell_time(monkeypatch)
    config = ReplayConfig(min_size=1, capacity=4_000, samples_per_insert_low=1.0, samples_per_insert_high=1.5)
    server, sampler, writer = link.serve(config), link.sampler(slots=1), link.writer()
    link.until(lambda: writer.has_credit, writer)
    inserted = 0

    def push() -> bool:
        nonlocal inserted
        while writer.has_credit and inserted < len(CHUNKS):
            writer.insert(CHUNKS[inserted])
            inserted += 1
        return inserted == len(CHUNKS) or not writer.has_credit

    link.until(lambda: push() and len(server.inbox.pending) > 0, writer)
    before = server.ring.inserted_items
    begun = clock.now
    link.until(lambda: clock.now - begun > 1.2 * SILENCE_SECONDS, writer)  # longer than the silence that means trouble
    assert server.ring.inserted_items == before and link.metrics.value("duplicates") == 0

    def learn() -> bool:
        push()
        batch = sampler.next(0)
        if batch:
            sampler.release(batch)
        return inserted == len(CHUNKS) and writer.outstanding == 0

    link.until(learn, writer)
    assert server.ring.inserted_items == 400 and link.metrics.value("duplicates") == 0 == link.metrics.value("gaps")


def test_what_the_limiter_blocks_is_inserted_when_the_run_ends(link: Link) -> None:
    config = ReplayConfig(min_size=1, capacity=4_000, samples_per_insert_low=1.0, samples_per_insert_high=1.5)
    server, sampler, writer = link.serve(config), link.sampler(slots=1), link.writer()
    link.until(lambda: writer.has_credit, writer)

    def push() -> bool:
        while writer.has_credit:
            writer.insert(CHUNKS[0])
        return len(server.inbox.pending) > 0

    link.until(push, writer)
    server.turn(0)
    assert writer.outstanding and server.table.blocked
    server.end_of_run()
    link.until(lambda: writer.outstanding == 0, writer)
    assert not server.inbox.pending and sampler.next(0) is None


def test_with_a_tight_band_record_and_line_show_which_side_is_blocked(link: Link) -> None:
    config = ReplayConfig(min_size=1, capacity=4_000, samples_per_insert_low=1.0, samples_per_insert_high=1.5)
    server, sampler, writer = link.serve(config), link.sampler(slots=1), link.writer()
    link.until(lambda: writer.has_credit, writer)

    def waits() -> dict[str, float]:
        """The record of a while in which nobody does anything."""
        link.metrics.record()
        for _ in range(5):
            server.turn(0.05)
        server.measure()
        return link.metrics.record()

    def push() -> bool:
        while writer.has_credit:
            writer.insert(CHUNKS[0])
        return len(server.inbox.pending) > 0

    link.until(push, writer)
    record = waits()
    assert record["insert_hold_fraction"] > 0.5 and not record.get("sample_hold_fraction")
    assert record["samples_per_insert"] < 1.0
    assert re.search(
        r"samples/insert 0\.\d \(band 1-1\.5\) .* actors blocked (100|[5-9]\d)% · learner blocked 0%", describe_items(record)
    )

    def learn() -> None:
        batch = sampler.next(0)
        if batch:
            sampler.release(batch)

    def both() -> bool:
        learn()
        return push() and server.ring.sampled_items > 1_000

    link.until(both, writer)
    assert 0.9 < server.ring.sampled_items / server.ring.inserted_items < 1.6

    def only_the_learner() -> bool:
        learn()
        return not writer.outstanding and server.learners.waiting

    link.until(only_the_learner, writer)
    record = waits()
    assert record["sample_hold_fraction"] > 0.5 and record["insert_hold_fraction"] == 0
    server.paused = True
    resting = waits()
    assert resting["idle_fraction"] > 0.5 and resting["sample_hold_fraction"] == 0
    assert 1.5 <= record["samples_per_insert"] < 1.6
    assert re.search(
        r"samples/insert 1\.[56] \(band 1-1\.5\) .* actors blocked 0% · learner blocked (100|[5-9]\d)%", describe_items(record)
    )


def test_a_learner_that_waits_for_slow_simulators_trains_more_on_what_there_is(link: Link) -> None:
    config = ReplayConfig(
        min_size=1, capacity=4_000, samples_per_insert_low=1.0, samples_per_insert_high=1.5, samples_per_insert_limit=16.0
    )
    server, sampler, writer = link.serve(config), link.sampler(slots=1), link.writer()
    link.until(lambda: server.learners.count and writer.has_credit, writer)
    for chunk in CHUNKS[:3]:
        writer.insert(chunk)
    link.until(lambda: writer.outstanding == 0, writer)
    inserted, begun = server.ring.inserted_items, time.monotonic()
    while server.ring.sampled_items < 16 * inserted and time.monotonic() < begun + PATIENCE_SECONDS:
        # Nothing arrives: the server must notice by itself that the learner has waited.
        server.turn(PATIENCE_SECONDS if server.learners.waiting else 0)
        if batch := sampler.next(0.01):
            sampler.release(batch)
    assert time.monotonic() < begun + PATIENCE_SECONDS
    link.until(lambda: server.learners.waiting)
    for _ in range(3):
        server.turn(SPARE_SECONDS)
    server.measure()
    record = link.metrics.record()
    assert server.learners.waiting and record["band_high"] == 16.0 <= record["samples_per_insert"] < 17.0
    assert "(band 1-16)" in describe_items(record)


def test_the_line_shows_what_is_on_disk_and_what_is_not(link: Link, tmp_path: Path) -> None:
    server, writer = link.serve(folder=tmp_path / "log"), link.writer()
    link.until(lambda: writer.has_credit, writer)
    writer.insert(CHUNKS[0])
    link.until(lambda: not writer.outstanding, writer)
    server.measure()
    record = link.metrics.record()
    assert record["log_bytes"] > 0
    assert record["unsynced_chunks"] == 1 and 0 < record["unsynced_bytes"] < record["log_bytes"]
    assert describe_items(record | {"log_bytes": 12.34e6, "unsynced_bytes": 0}).endswith(" · log 12.3 MB")
    assert describe_items(record | {"log_bytes": 12.34e6, "unsynced_bytes": 0.4e6}).endswith(" · log 12.3 MB (0.4 not synced)")
    assert describe_items(record | {"missing_chunks": 3}).endswith(" · 3 missing chunks")
    assert describe_items(record | {"unlogged_chunks": 5.0}).endswith(" synced) · 5 chunks not on disk")
    assert "log " not in describe_items({})


@pytest.mark.parametrize("shared", [True, False])
def test_batches_arrive_in_shared_memory_or_as_parts_and_slots_are_reused(link: Link, shared: bool) -> None:
    server, writer, sampler = link.serve(), link.writer(), link.sampler(shared)
    link.until(lambda: writer.has_credit, writer)
    for chunk in CHUNKS[:4]:
        writer.insert(chunk)
    seen = 0

    def learn() -> bool:
        nonlocal seen
        batch = sampler.next(0)
        if batch:
            positions = batch.arrays["observation/position"][:, 0]
            assert (batch.arrays["reward"][:, 0] == 10 * positions).all()
            assert (batch.arrays["key"] == positions).all()  # one stream from zero on: the key is the position
            sampler.update_priorities(batch.arrays["key"], np.ones(8))
            sampler.release(batch)
            seen += 1
        return seen == 20

    link.until(learn, writer)
    assert server.ring.sampled_items >= 160


def test_a_batch_says_how_many_episodes_have_ended(link: Link) -> None:
    _, writer, sampler = link.serve(), link.writer(), link.sampler()
    link.until(lambda: writer.has_credit, writer)
    ends = {1: "terminated", 6: "truncated", 7: "terminated", 8: "truncated", 30: "terminated"}
    for chunk in stream_chunks(SPEC, ends, 40):  # rows around a chunk's own steps are in two chunks
        writer.insert(chunk)
    link.until(lambda: writer.outstanding == 0, writer)
    seen = 0

    def learn() -> bool:
        nonlocal seen
        if batch := sampler.next(0):
            sampler.release(batch)
            seen += 1
        return seen == 20  # more than could be on their way while chunks arrived

    link.until(learn, writer)
    assert sampler.episodes == len(ends)


def test_a_request_brings_the_priorities_of_the_slots_last_batch(link: Link) -> None:
    server, writer, sampler = link.serve(), link.writer(), link.sampler()
    link.until(lambda: writer.has_credit, writer)
    for chunk in CHUNKS[:4]:
        writer.insert(chunk)
    taken: list[tuple[list[int], list[float]]] = []
    update = server.ring.update_priorities

    def taking(keys: np.ndarray, new: np.ndarray) -> int:
        taken.append((keys.tolist(), new.tolist()))
        return update(keys, new)

    server.ring.update_priorities = taking  # type: ignore[method-assign,assignment]
    sent: list[tuple[list[int], list[float]]] = []

    def learn() -> bool:
        batch = sampler.next(0)
        if batch:
            new = np.random.default_rng(len(sent)).random(8, np.float32)
            sent.append((batch.arrays["key"].tolist(), new.tolist()))
            sampler.answer(batch, new)
        return len(taken) >= 20

    link.until(learn, writer)
    assert taken[:20] == sent[:20]
    assert link.metrics.value("rejected") == 0


def test_the_last_priorities_of_a_sampler_that_closes_arrive(link: Link) -> None:
    server, writer = link.serve(), link.writer()
    sampler = Sampler(link.address, "learner", new_incarnation(), SPEC, 8, 4)
    for chunk in CHUNKS[:4]:
        writer.insert(chunk)
    batches: list[SampledBatch] = []

    def drawn() -> bool:
        batches.extend(filter(None, [sampler.next(0)]))
        return bool(batches)

    link.until(drawn, writer)
    key = batches[0].arrays["key"].copy()
    sampler.answer(batches[0], np.full(8, 1_000, np.float32))
    sampler.close()
    before = server.ring.state().selector.values[key]
    link.until(lambda: (server.ring.state().selector.values[key] > before).all(), writer)


def test_the_priorities_of_a_large_batch_arrive(link: Link) -> None:
    size = 100_000  # more than a megabyte of keys and priorities
    server, writer, sampler = link.serve(leased=2 * size), link.writer(), link.sampler(batch_size=size)
    link.until(lambda: writer.has_credit, writer)
    for chunk in CHUNKS[:4]:
        writer.insert(chunk)
    taken: list[int] = []

    def taking(keys: np.ndarray, new: np.ndarray) -> int:
        taken.append(len(keys))
        return len(keys)

    server.ring.update_priorities = taking  # type: ignore[method-assign,assignment]
    answered = 0

    def learn() -> bool:
        nonlocal answered
        if batch := sampler.next(0):
            sampler.answer(batch, np.ones(size, np.float32))
            answered += 1
        return answered == 6

    link.until(learn, writer)
    assert len(taken) >= 4 and set(taken) == {size}, "with each request for a slot that has been used"


def test_a_dead_learner_does_not_stop_the_actors(link: Link) -> None:
    config = ReplayConfig(min_size=1, capacity=4_000, samples_per_insert_low=100.0, samples_per_insert_high=200.0)
    server, writer = link.serve(config), link.writer()
    sampler = Sampler(link.address, "learner", new_incarnation(), SPEC, 8, 1)
    link.until(lambda: writer.has_credit and server.learners.connected, writer)

    def held() -> bool:
        server.ring.limiter.under_way = server.ring.limiter.batches = 0  # the server sets them anew twice a second
        return len(server.inbox.pending) > 0

    assert not held()
    writer.insert(CHUNKS[0])
    writer.insert(CHUNKS[1])
    link.until(held, writer)
    sampler.close()
    link.until(lambda: writer.outstanding == 0, writer)


def test_a_learner_gets_batches_again_after_replay_restarts(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    link.tell_time(monkeypatch)
    link.serve()
    writer, sampler = link.writer(), link.sampler()
    link.until(lambda: writer.has_credit, writer)

    def learns() -> bool:
        batch = sampler.next(0)
        if batch:
            sampler.release(batch)
        return batch is not None

    for _ in range(3):
        writer.insert(CHUNKS[0])
        link.until(learns, writer)
        link.serve()


def test_another_spec_is_refused_with_the_reason(link: Link) -> None:
    link.serve()
    writer = link.writer(spec=make_spec(length=8, stack=1, n_step=1))
    with pytest.raises(ReplayRefused, match="another experience spec"):
        link.until(lambda: False, writer)


def test_a_damaged_chunk_is_counted_and_its_writer_continues(link: Link) -> None:
    server, writer = link.serve(), link.writer()
    link.until(lambda: writer.has_credit, writer)
    send = writer.client.send

    def damaging(message: object, parts: object = ()) -> bool:
        damaged = [part[:-1] + bytes([part[-1] ^ 1]) for part in parts]  # type: ignore[attr-defined]
        return send(message, damaged if isinstance(message, Insert) and message.sequence == 0 else parts)  # type: ignore[arg-type]

    writer.client.send = damaging  # type: ignore[method-assign,assignment]
    writer.insert(CHUNKS[0])
    writer.insert(CHUNKS[1])
    link.until(lambda: writer.outstanding == 0, writer)
    assert link.metrics.value("rejected") == 1 and server.ring.inserted_items == 4


def test_both_ends_report_silence_but_not_an_idle_peer(
    link: Link, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = link.tell_time(monkeypatch)
    server, writer = link.serve(), link.writer()
    link.until(lambda: writer.has_credit, writer)
    begun = clock.now
    link.until(lambda: clock.now - begun > 2 * writers.SILENCE_SECONDS, writer)
    assert capsys.readouterr().out == "" and not writer.absences
    link.until(lambda: link.metrics.value("silent_writers") == 1)  # the server turns, the writer does not
    assert re.fullmatch(r"no message from actor-0 for [45] s\n", capsys.readouterr().out)
    link.until(lambda: not link.metrics.value("silent_writers"), writer)
    link.server = None
    link.until(lambda: writer.absences == 1, writer)
    link.server = server
    link.until(lambda: not writer.absent, writer)
    said = capsys.readouterr().out
    assert "no answer from replay for 3 s: 0 chunks are kept" in said and "replay answers again" in said


def test_an_idle_writer_that_a_new_server_does_not_know_is_asked_to_greet(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.client.writer.PRESENT_SECONDS", 0.1)
    link.serve()
    writer = link.writer()
    link.until(lambda: writer.has_credit, writer)
    server = link.serve()
    link.until(lambda: server.writers.connected, writer)


def test_a_writer_of_many_streams_does_not_switch_the_limiter_off(link: Link) -> None:
    """The slack is what its credit in bytes lets it send, not what it would like to."""
    config = msgspec.structs.replace(FREE, receive_bytes=10_000)
    server, writer = link.serve(config), link.writer(streams=MOST_STREAMS)
    link.until(lambda: writer.has_credit, writer)
    most = (config.receive_bytes // SPEC.chunk_bytes + 1) * SPEC.chunk_length
    assert 0 < server.ring.limiter.under_way <= most < 2 * MOST_STREAMS * SPEC.chunk_length


def test_a_greeting_has_no_more_streams_than_an_actor_has_environments() -> None:
    hello = WriterHello("actor-0", 1, PROTOCOL, SPEC.digest, MOST_STREAMS, 0)
    assert unpack(pack(hello)) == hello
    with pytest.raises(MalformedMessage):
        unpack(pack(msgspec.structs.replace(hello, streams=MOST_STREAMS + 1)))
    assert read_actors({"envs_per_actor": MOST_STREAMS}).envs_per_actor == MOST_STREAMS
    with pytest.raises(msgspec.ValidationError):
        read_actors({"envs_per_actor": MOST_STREAMS + 1})


def read_actors(section: dict[str, int]) -> ActorsConfig:
    return msgspec.convert(section, ActorsConfig)


def test_after_a_goodbye_the_credit_goes_to_the_others(link: Link) -> None:
    server = link.serve(FREE)
    stays, leaves = link.writer("actor-0"), link.writer("actor-1")
    link.until(lambda: stays.has_credit and leaves.has_credit, stays, leaves)
    link.until(lambda: server.ring.limiter.under_way > 0 and queue_limit(link) == 16, stays, leaves)
    leaves.insert(CHUNKS[0])
    link.until(lambda: not leaves.outstanding, stays, leaves)
    leaves.close()
    link.opened.remove(leaves)
    link.until(lambda: queue_limit(link) == 8, stays)


def test_without_a_goodbye_the_credit_of_a_lost_writer_goes_to_the_others_too(link: Link) -> None:
    link.serve(FREE)
    stays, leaves = link.writer("actor-0"), link.writer("actor-1")
    link.until(lambda: stays.has_credit and leaves.has_credit, stays, leaves)
    leaves.client.close()
    link.opened.remove(leaves)
    link.until(lambda: queue_limit(link) == 8, stays)


def test_a_reduced_share_is_sent_to_the_earlier_writers(link: Link) -> None:
    link.serve(
        ReplayConfig(min_size=1, capacity=4_000, samples_per_insert_low=0, samples_per_insert_high=1e9, receive_bytes=50_000)
    )
    writers = [link.writer("actor-0")]
    link.until(lambda: writers[0].has_credit, *writers)
    before = writers[0].credit
    writers += [link.writer(f"actor-{index}") for index in range(1, 200)]
    link.until(lambda: writers[0].credit < before, *writers)


def queue_limit(link: Link) -> float:
    assert link.server is not None
    link.server.measure()
    return link.metrics.value("queue_limit")


def draw(sampler: Sampler) -> int:
    """Takes a batch, if there is one, and gives its slot back; the number of batches."""
    batch = sampler.next(0)
    if batch is None:
        return 0
    sampler.update_priorities(batch.arrays["key"], np.ones(len(batch.arrays["key"])))
    sampler.release(batch)
    return 1


def test_several_learners_are_served_in_turn_and_an_idle_one_delays_no_other(link: Link) -> None:
    server, writer = link.serve(), link.writer()
    samplers = [link.sampler(slots=3, name=name) for name in ("learner", "learner-1", "learner-2")]
    link.until(lambda: writer.has_credit and server.learners.count == 3, writer)
    assert server.ring.limiter.batches == 3 * 3 * 8, "the limiter leaves room for the slots of all"
    for chunk in CHUNKS[:4]:
        writer.insert(chunk)

    def all_filled() -> bool:
        for sampler in samplers:
            sampler._receive(0)  # takes in what comes and uses none of it
        return server.ring.sampled_items == 3 * 3 * 8

    link.until(all_filled, writer)
    drawn = [0, 0]

    def learn() -> bool:
        for place, sampler in enumerate(samplers[:2]):
            drawn[place] += draw(sampler)
        return sum(drawn) >= 100

    link.until(learn, writer)
    assert abs(drawn[0] - drawn[1]) <= 3
    assert link.metrics.value("rejected") == 0


def test_a_learner_that_requests_fast_does_not_delay_another(link: Link) -> None:
    server, writer = link.serve(), link.writer()
    one, other = link.sampler(slots=1), link.sampler(slots=1, name="learner-1")
    order: list[str] = []
    draw_from = server.table.draw

    def drawing(request: object, arrays: dict[str, np.ndarray]) -> int | None:
        found = draw_from(request, arrays)  # type: ignore[arg-type]
        if found is not None:
            order.append(server.learners.connected[0].name)
        return found

    server.table.draw = drawing  # type: ignore[method-assign,assignment]
    link.until(lambda: writer.has_credit and server.learners.count == 2, writer)

    def both_wait() -> bool:
        for sampler in (one, other):
            sampler._receive(0)
        return all(learner.requests for learner in server.learners.connected)

    link.until(both_wait, writer)
    for chunk in CHUNKS[:4]:
        writer.insert(chunk)

    serve = server.learners.serve

    def serve_when_both_ask() -> None:  # a request takes a moment to arrive
        if all(learner.requests for learner in server.learners.connected):
            serve()

    server.learners.serve = serve_when_both_ask  # type: ignore[method-assign]

    def both() -> bool:
        draw(one)
        draw(other)
        return len(order) >= 40

    link.until(both, writer)
    assert {"learner", "learner-1"} == set(order)
    assert all(before != after for before, after in zip(order[:-1], order[1:], strict=True)), order


def test_a_lost_learner_is_removed_and_the_others_continue(link: Link) -> None:
    config = ReplayConfig(min_size=1, capacity=4_000, samples_per_insert_low=1.0, samples_per_insert_high=200.0)
    server, writer = link.serve(config), link.writer()
    stays, leaves = link.sampler(), link.sampler(name="learner-1")
    link.until(lambda: writer.has_credit and server.learners.count == 2, writer)
    leaves.close()
    link.opened.remove(leaves)
    link.until(lambda: [learner.name for learner in server.learners.connected] == ["learner"], writer)
    assert server.ring.limiter.batches == 2 * 8 and server.ring.limiter.learner_connected
    writer.insert(CHUNKS[0])
    drawn = 0

    def learns() -> bool:
        nonlocal drawn
        drawn += draw(stays)
        return drawn > 10

    link.until(learns, writer)


def test_a_new_incarnation_of_a_learner_replaces_only_the_old_one_of_its_name(link: Link) -> None:
    server, writer = link.serve(), link.writer()
    samplers = [link.sampler(), link.sampler(name="learner-1")]
    link.until(lambda: writer.has_credit and server.learners.count == 2, writer)
    before = {learner.name: learner.incarnation for learner in server.learners.connected}
    link.sampler(name="learner-1")

    def incarnations() -> dict[str, int]:
        return {learner.name: learner.incarnation for learner in server.learners.connected}

    link.until(lambda: incarnations().get("learner-1") not in (None, before["learner-1"]), writer)
    assert incarnations().keys() == before.keys() and incarnations()["learner"] == before["learner"]
    writer.insert(CHUNKS[0])
    link.until(lambda: draw(samplers[0]), writer)
