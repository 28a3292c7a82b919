"""Server and clients over a real socket: acknowledgement, resending, restart, hold, refusal."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from actors.config import ActorsConfig
from replay.__main__ import describe_items
from replay.client.base import SILENCE_SECONDS, ReplayRefused
from replay.client.sampler import Sampler
from replay.client.writer import ExperienceWriter
from replay.config import ReplayConfig
from replay.server import writers
from replay.server.server import ReplayServer
from replay.table.limiter import SPARE_SECONDS
from tests.harness.link import Link
from tests.harness.waiting import PATIENCE_SECONDS
from tests.replay.examples import make_spec, stream_chunks
from transport.experience import Categorical, Chunk, ExperienceSpec, observed
from transport.messages.codec import pack, unpack
from transport.messages.fields import MOST_STREAMS, PROTOCOL, MalformedMessage
from transport.messages.replay import Ack, Insert, WriterHello
from transport.sockets.channel import FRAME_BYTES

SPEC = make_spec(length=4, stack=1, n_step=1)
CHUNKS = stream_chunks(SPEC, {}, 400)
FREE = ReplayConfig(min_size=1, capacity=4_000, samples_per_insert_low=0, samples_per_insert_high=1e9)
TIGHT = ReplayConfig(min_size=1, capacity=4_000, samples_per_insert_low=1.0, samples_per_insert_high=1.5)


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    with Link(tmp_path, SPEC, FREE) as made:
        yield made


def push(link: Link, writer: ExperienceWriter) -> None:
    """Inserts until the credit is used up and chunks wait for the limiter."""

    def waiting() -> bool:
        while writer.has_credit:
            writer.insert(CHUNKS[0])
        return len(link.server.inbox.pending) > 0  # type: ignore[union-attr]

    link.until(waiting, writer)


def draw(sampler: Sampler) -> int:
    """Takes a batch, if there is one, and gives its slot back; the number of batches."""
    if (batch := sampler.next(0)) is None:
        return 0
    sampler.update_priorities(batch.arrays["key"], np.ones(len(batch.arrays["key"])))
    sampler.release(batch)
    return 1


def losing_acks(server: ReplayServer, until: Callable[[], bool]) -> None:
    send = server.socket.send
    lossy = lambda peer, message, parts=(): (isinstance(message, Ack) and not until()) or send(peer, message, parts)  # noqa: E731
    server.socket.send = lossy  # type: ignore[method-assign,assignment]


# ---- exactly once


def on_the_wire(change: Callable[[Insert], int]) -> Callable[[ReplayServer, ExperienceWriter], None]:
    """Sends an Insert as often as `change` says."""

    def fault(server: ReplayServer, writer: ExperienceWriter) -> None:
        send, seen = writer.client.send, set[int]()

        def faulty(message: Any, parts: Any = ()) -> bool:
            times = 1
            if isinstance(message, Insert) and message.sequence not in seen:
                times = change(message)
            seen.add(getattr(message, "sequence", -1))
            return all([send(message, parts) for _ in range(times)])

        writer.client.send = faulty  # type: ignore[method-assign]

    return fault


def greeted_twice(server: ReplayServer, writer: ExperienceWriter) -> None:
    writer.greet()
    writer.greet()


def acknowledgements_lost(server: ReplayServer, writer: ExperienceWriter) -> None:
    first = writer._greeted
    losing_acks(server, until=lambda: writer._greeted != first)


@pytest.mark.parametrize(
    ("fault", "counted"),
    [
        (lambda server, writer: None, {}),
        (on_the_wire(lambda message: message.sequence != 2), {"gaps": 1}),
        (on_the_wire(lambda message: message.sequence != 5), {}),  # no later chunk shows the gap
        (on_the_wire(lambda message: 1 + (message.sequence == 5)), {"duplicates": 1}),
        (greeted_twice, {}),
        (lambda server, writer: server.writers.peers.clear(), {}),  # as if another server were behind the same address
        (acknowledgements_lost, {}),
    ],
    ids=["none", "a chunk lost", "the last chunk lost", "a chunk doubled", "greeted twice", "forgotten", "acks lost"],
)
def test_every_chunk_is_inserted_once_whatever_the_wire_does(
    link: Link, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., None], counted: dict[str, int]
) -> None:
    link.tell_time(monkeypatch)
    server, writer = link.begin()
    fault(server, writer)
    link.until(lambda: writer.welcomed, writer)
    link.send(writer, CHUNKS[:6])
    link.until(lambda: all(link.metrics.value(name) == number for name, number in counted.items()), writer)
    assert server.ring.inserted_items == 24 == writer.acknowledged_steps
    for name in ("gaps", "duplicates", "rejected"):
        assert link.metrics.value(name) == counted.get(name, 0), name


def test_a_restarted_server_gets_what_it_lacks_and_nothing_twice(
    link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.tell_time(monkeypatch)
    server, writer = link.begin(folder=tmp_path / "log")
    losing_acks(server, until=lambda: False)
    for chunk in CHUNKS[:3]:
        writer.insert(chunk)
    link.until(lambda: server.ring.inserted_items == 12, writer)
    server.close()
    link.server = None
    link.until(lambda: writer.absences, writer)
    writer.insert(CHUNKS[3])
    server = link.serve(folder=tmp_path / "log")
    link.until(lambda: writer.outstanding == 0, writer)
    assert server.ring.size == 16 and link.metrics.value("gaps") == 0 == link.metrics.value("duplicates")
    assert link.metrics.value("restored_steps") == 12


@pytest.mark.parametrize("side", [100, 640])  # three parts, and more than a server takes for anything but a chunk
def test_a_part_above_the_frame_limit_is_cut_and_put_together_again(tmp_path: Path, side: int) -> None:
    spec = ExperienceSpec(
        (observed("picture", (side, side), "|u1", codec="lz4"), observed("position", (), "<f4")), Categorical(4), 16
    )
    noise = np.random.default_rng(0).integers(0, 256, (17, side, side), np.uint8)
    columns = {column.name: np.ones((17, *column.shape), column.dtype) for column in spec.columns} | {"picture": noise}
    with Link(tmp_path, spec, FREE) as link:
        server, writer = link.begin(folder=tmp_path / "log")
        writer.insert(Chunk(0, 16, columns))
        parts = writer.unacknowledged[0].parts
        assert max(map(len, parts)) <= FRAME_BYTES and len(parts) == 1 + 17 * side * side // FRAME_BYTES
        link.until(lambda: writer.outstanding == 0, writer)
        assert (server.ring._storage.room(0)["picture"] == noise).all()
        server = link.serve(folder=tmp_path / "log")
        assert server.ring.size == 16 and (server.ring._storage.room(0)["picture"] == noise).all()


def test_a_chunk_whose_sizes_do_not_match_its_parts_is_rejected(link: Link) -> None:
    server, writer = link.begin()
    writer.insert(CHUNKS[0])
    entry = writer.unacknowledged[0]
    link.until(lambda: writer.outstanding == 0, writer)
    wrong = msgspec.structs.replace(entry.message, sequence=1, sizes=(1, 2))
    server.writers.on_insert(next(iter(server.writers.peers)), wrong, [b"".join(entry.parts)])  # type: ignore[arg-type]
    link.until(lambda: link.metrics.value("rejected") == 1, writer)
    assert server.ring.inserted_items == 4


# ---- the limiter


def test_while_the_limiter_blocks_nothing_is_resent_or_lost(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = link.tell_time(monkeypatch)
    server, writer = link.begin(TIGHT)
    sampler, chunks = link.sampler(slots=1), iter(CHUNKS)

    def insert() -> bool:
        """False when all have been inserted."""
        while writer.has_credit:
            if (chunk := next(chunks, None)) is None:
                return False
            writer.insert(chunk)
        return True

    link.until(lambda: insert() and len(server.inbox.pending) > 0, writer)
    assert 8 <= writer.outstanding and (writer.outstanding - 1) * SPEC.chunk_bytes < writer.credit, "credit runs out first"
    before, begun = server.ring.inserted_items, clock.now
    link.until(lambda: clock.now - begun > 1.2 * SILENCE_SECONDS, writer)  # longer than the silence that means trouble
    assert server.ring.inserted_items == before and link.metrics.value("duplicates") == 0
    link.until(lambda: (draw(sampler), not insert() and not writer.outstanding)[1], writer)
    assert server.ring.inserted_items == 400 and link.metrics.value("duplicates") == 0 == link.metrics.value("gaps")


def test_what_the_limiter_blocks_is_inserted_when_the_run_ends(link: Link) -> None:
    server, writer = link.begin(TIGHT)
    sampler = link.sampler(slots=1)
    push(link, writer)
    server.turn(0)
    assert writer.outstanding and server.table.blocked
    server.end_of_run()
    link.until(lambda: writer.outstanding == 0, writer)
    assert not server.inbox.pending and sampler.next(0) is None


def idle_record(link: Link) -> dict[str, float]:
    """The record of a while in which no client does anything."""
    assert link.server
    link.metrics.record()
    for _ in range(5):
        link.server.turn(0.05)
    link.server.measure()
    return link.metrics.record()


def test_with_a_tight_band_record_and_line_show_which_side_is_blocked(link: Link) -> None:
    server, writer = link.begin(TIGHT)
    sampler = link.sampler(slots=1)
    push(link, writer)
    record = idle_record(link)
    assert record["insert_hold_fraction"] > 0.5 and not record.get("sample_hold_fraction") and record["samples_per_insert"] < 1.0
    blocked = r"samples/insert 0\.\d \(band 1-1\.5\) .* actors blocked (100|[5-9]\d)% · learner blocked 0%"
    assert re.search(blocked, describe_items(record))
    while server.ring.sampled_items <= 1_000:
        push(link, writer)
        draw(sampler)
    assert 0.9 < server.ring.sampled_items / server.ring.inserted_items < 1.6
    link.until(lambda: (draw(sampler), not writer.outstanding and server.learners.waiting)[1], writer)
    record = idle_record(link)
    assert record["sample_hold_fraction"] > 0.5 and record["insert_hold_fraction"] == 0
    server.paused = True
    resting = idle_record(link)
    assert resting["idle_fraction"] > 0.5 and resting["sample_hold_fraction"] == 0
    assert 1.5 <= record["samples_per_insert"] < 1.6
    waiting = r"samples/insert 1\.[56] \(band 1-1\.5\) .* actors blocked 0% · learner blocked (100|[5-9]\d)%"
    assert re.search(waiting, describe_items(record))


def test_a_learner_that_waits_for_slow_simulators_trains_more_on_what_there_is(link: Link) -> None:
    server, writer = link.begin(msgspec.structs.replace(TIGHT, samples_per_insert_limit=16.0))
    sampler = link.sampler(slots=1)
    link.until(lambda: server.learners.count, writer)
    link.send(writer, CHUNKS[:3])
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
    server, writer = link.begin(folder=tmp_path / "log")
    link.send(writer, CHUNKS[:1])
    server.measure()
    record = link.metrics.record()
    assert record["unsynced_chunks"] == 1 and 0 < record["unsynced_bytes"] < record["log_bytes"]
    synced = record | {"log_bytes": 12.34e6, "unsynced_bytes": 0}
    assert describe_items(synced).endswith(" · log 12.3 MB")
    assert describe_items(synced | {"unsynced_bytes": 0.4e6}).endswith(" · log 12.3 MB (0.4 not synced)")
    assert describe_items(synced | {"missing_chunks": 3}).endswith(" · 3 missing chunks")
    assert describe_items(synced | {"unlogged_chunks": 5.0}).endswith(" · 5 chunks not on disk")
    assert "log " not in describe_items({})


# ---- the learner


@pytest.mark.parametrize("shared", [True, False])
def test_batches_arrive_in_shared_memory_or_as_parts_and_slots_are_reused(link: Link, shared: bool) -> None:
    server, writer = link.begin()
    sampler = link.sampler(shared)
    ends = {1: "terminated", 6: "truncated", 7: "terminated", 8: "truncated", 30: "terminated"}
    link.send(writer, stream_chunks(SPEC, ends, 40))  # rows around a chunk's own steps are in two chunks
    for _ in range(20):  # more than could be on their way while chunks arrived
        batch = link.batch(sampler, writer)
        positions = batch.arrays["observation/position"][:, 0]
        assert (batch.arrays["reward"][:, 0] == 10 * positions).all()
        sampler.update_priorities(batch.arrays["key"], np.ones(8))
        sampler.release(batch)
    assert server.ring.sampled_items >= 160 and sampler.episodes == len(ends)
    assert sampler.steps == [link.metrics.value("inserted_steps")] and sampler.steps[0] >= 40


def test_a_request_brings_the_priorities_of_the_slots_last_batch_and_a_closing_sampler_sends_the_rest(link: Link) -> None:
    server, writer = link.begin()
    sampler = link.sampler(slots=4)
    link.send(writer, CHUNKS[:4])
    taken: list[tuple[list[int], list[float]]] = []
    update = server.ring.update_priorities
    taking = lambda keys, new: (taken.append((keys.tolist(), new.tolist())), update(keys, new))[1]  # noqa: E731
    server.ring.update_priorities = taking  # type: ignore[method-assign]
    sent: list[tuple[list[int], list[float]]] = []
    for number in range(21):  # two are sent together, the last by close
        batch = link.batch(sampler, writer)
        new = np.random.default_rng(number).random(8, np.float32)
        sent.append((batch.arrays["key"].tolist(), new.tolist()))
        sampler.answer(batch, new)
    link.leave(sampler)
    link.until(lambda: len(taken) == 21, writer)
    assert taken == sent and link.metrics.value("rejected") == 0


def test_the_priorities_of_a_large_batch_arrive(link: Link) -> None:
    size = 100_000  # more than a megabyte of keys and priorities
    server, writer, sampler = link.serve(leased=2 * size), link.writer(), link.sampler(batch_size=size)
    link.until(lambda: writer.has_credit, writer)
    link.send(writer, CHUNKS[:4])
    taken: list[int] = []
    server.ring.update_priorities = lambda keys, new: (taken.append(len(keys)), len(keys))[1]  # type: ignore[method-assign]
    for _ in range(6):
        sampler.answer(link.batch(sampler, writer), np.ones(size, np.float32))
    assert len(taken) >= 4 and set(taken) == {size}, "with each request for a slot that has been used"


def test_a_learner_gets_batches_again_after_replay_restarts(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    link.tell_time(monkeypatch)
    _, writer = link.begin()
    sampler = link.sampler()
    for _ in range(3):
        writer.insert(CHUNKS[0])
        link.until(lambda: draw(sampler), writer)
        link.serve()


def test_several_learners_are_served_in_turn_and_an_idle_one_delays_no_other(link: Link) -> None:
    server, writer = link.begin()
    samplers = [link.sampler(slots=3, name=name) for name in ("learner", "learner-1", "learner-2")]
    link.until(lambda: server.learners.count == 3, writer)
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
    assert abs(drawn[0] - drawn[1]) <= 3 and link.metrics.value("rejected") == 0


def test_learners_that_ask_at_the_same_time_get_batches_in_turn(link: Link) -> None:
    server, writer = link.begin()
    one, other = link.sampler(slots=1), link.sampler(slots=1, name="learner-1")
    order: list[str] = []
    draw_from, serve = server.table.draw, server.learners.serve

    def drawing(request: Any, arrays: dict[str, np.ndarray]) -> int | None:
        if (found := draw_from(request, arrays)) is not None:
            order.append(server.learners.connected[0].name)
        return found

    def both_ask() -> bool:  # a request takes a moment to arrive
        return server.learners.count == 2 and all(learner.requests for learner in server.learners.connected)

    server.table.draw = drawing  # type: ignore[method-assign]
    server.learners.serve = lambda: serve() if both_ask() else None  # type: ignore[method-assign]
    for chunk in CHUNKS[:4]:
        writer.insert(chunk)
    link.until(lambda: (draw(one), draw(other), len(order) >= 40)[2], writer)
    assert set(order) == {"learner", "learner-1"}
    assert all(before != after for before, after in zip(order[:-1], order[1:], strict=True)), order


def test_a_lost_learner_holds_nobody_and_a_new_incarnation_replaces_only_the_old_one_of_its_name(link: Link) -> None:
    server, writer = link.begin(msgspec.structs.replace(TIGHT, samples_per_insert_high=200.0))

    def incarnations() -> dict[str, int]:
        return {learner.name: learner.incarnation for learner in server.learners.connected}

    stays, _ = link.sampler(), link.sampler(name="learner-1")
    link.until(lambda: server.learners.count == 2, writer)
    before = incarnations()
    leaves = link.sampler(name="learner-1")
    link.until(lambda: incarnations().get("learner-1") not in (None, before["learner-1"]), writer)
    assert incarnations().keys() == before.keys() and incarnations()["learner"] == before["learner"]
    link.leave(leaves)
    link.until(lambda: [*incarnations()] == ["learner"], writer)
    assert server.ring.limiter.batches == 2 * 8 and server.ring.limiter.learner_connected
    writer.insert(CHUNKS[0])
    for _ in range(10):
        link.until(lambda: draw(stays), writer)


# ---- greetings, silence and credit


def test_another_spec_is_refused_with_the_reason(link: Link) -> None:
    link.serve()
    writer = link.writer(spec=make_spec(length=8, stack=1, n_step=1))
    with pytest.raises(ReplayRefused, match="another experience spec"):
        link.until(lambda: False, writer)


def test_both_ends_report_silence_but_not_an_idle_peer(
    link: Link, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = link.tell_time(monkeypatch)
    server, writer = link.begin()
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
    _, writer = link.begin()
    server = link.serve()
    link.until(lambda: server.writers.connected, writer)


def test_a_writer_of_many_streams_does_not_switch_the_limiter_off(link: Link) -> None:
    """The slack is what its credit in bytes lets it send, not what it would like to."""
    config = msgspec.structs.replace(FREE, receive_bytes=10_000)
    server, _ = link.begin(config, streams=MOST_STREAMS)
    most = (config.receive_bytes // SPEC.chunk_bytes + 1) * SPEC.chunk_length
    assert 0 < server.ring.limiter.under_way <= most < 2 * MOST_STREAMS * SPEC.chunk_length


def test_a_greeting_has_no_more_streams_than_an_actor_has_environments() -> None:
    hello = WriterHello("actor-0", 1, PROTOCOL, SPEC.digest, MOST_STREAMS, 0)
    assert unpack(pack(hello)) == hello and msgspec.convert({"envs_per_actor": MOST_STREAMS}, ActorsConfig)
    with pytest.raises(MalformedMessage):
        unpack(pack(msgspec.structs.replace(hello, streams=MOST_STREAMS + 1)))
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"envs_per_actor": MOST_STREAMS + 1}, ActorsConfig)


@pytest.mark.parametrize("goodbye", [True, False])
def test_the_credit_of_a_writer_that_has_left_goes_to_the_others(link: Link, goodbye: bool) -> None:
    server, stays = link.begin()
    leaves = link.writer("actor-1")

    def queue_limit() -> float:
        server.measure()
        return link.metrics.value("queue_limit")

    link.until(lambda: leaves.has_credit and server.ring.limiter.under_way > 0 and queue_limit() == 16, stays, leaves)
    if not goodbye:
        leaves.client.send = lambda message, parts=(): True  # type: ignore[method-assign]
    link.leave(leaves)
    link.until(lambda: queue_limit() == 8, stays)


def test_a_reduced_share_is_sent_to_the_earlier_writers(link: Link) -> None:
    _, first = link.begin(msgspec.structs.replace(FREE, receive_bytes=50_000))
    before = first.credit
    others = [link.writer(f"actor-{index}") for index in range(1, 200)]
    link.until(lambda: first.credit < before, first, *others)
