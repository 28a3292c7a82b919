"""Peers that break the protocol, of the replay server and of its clients, harm only themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from replay.__main__ import describe_items
from replay.client.base import ReplayRefused
from replay.client.sampler import Sampler
from replay.client.sharded import ShardedSampler
from replay.client.writer import MOST_CREDIT_BYTES, ExperienceWriter
from replay.config import ReplayConfig
from replay.table.layout import layout
from tests.harness.address import local_address
from tests.harness.link import Link
from tests.harness.waiting import wait_until
from tests.replay.examples import every_item, make_spec, stream_chunks
from transport.compression import crc32, pack_chunk
from transport.messages.fields import PROTOCOL
from transport.messages.replay import (
    Ack,
    Credit,
    Greet,
    Hold,
    Insert,
    PriorityUpdate,
    Refused,
    Sample,
    SampleRequest,
    SamplerHello,
    SamplerWelcome,
    WriterHello,
    WriterWelcome,
)
from transport.sockets.client import Client
from transport.sockets.server import Server

SPEC = make_spec(length=4, stack=1, n_step=1)
CHUNKS = stream_chunks(SPEC, {}, 400)
FREE = ReplayConfig(min_size=1, capacity=4_000, samples_per_insert_low=0, samples_per_insert_high=1e9)
HELD = structs.replace(FREE, samples_per_insert_low=1.0, samples_per_insert_high=1.5)


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    with Link(tmp_path, SPEC, FREE) as made:
        yield made


class Villain:
    """A client that can send invalid messages."""

    def __init__(self, link: Link, name: str = "villain", incarnation: int = 666) -> None:
        self.client = Client(link.address)
        self.received: list[object] = []
        self.hello(name, incarnation)

    def hello(self, name: str, incarnation: int, first: int = 0) -> None:
        self.client.send(WriterHello(name, incarnation, PROTOCOL, SPEC.digest, 1, first))

    def chunk(self, sequence: int, at: int = 0, **changes: int) -> None:
        parts = pack_chunk(SPEC, CHUNKS[at])
        insert = Insert(sequence, 0, CHUNKS[at].length, crc32(parts))
        self.client.send(structs.replace(insert, **changes), parts)

    def hears(self, kind: type) -> bool:
        """A message of this type has come."""
        while (arrival := self.client.receive()) is not None:
            self.received.append(arrival[0])
        return any(isinstance(received, kind) for received in self.received)

    def close(self) -> None:
        self.client.close()


@pytest.fixture
def villain(link: Link) -> Iterator[Villain]:
    link.serve()
    made = Villain(link)
    yield made
    made.close()


def test_what_exceeds_a_writers_credit_is_dropped_and_counted(link: Link) -> None:
    server, sampler, honest = link.serve(HELD), link.sampler(slots=1), link.writer()
    villain = Villain(link)
    link.until(lambda: honest.has_credit and sampler.next(0) is None and villain.hears(WriterWelcome), honest)
    sequence = 0

    def flood() -> bool:
        nonlocal sequence
        for _ in range(50):
            villain.chunk(sequence)
            sequence += 1
        return link.metrics.value("overdrawn") > 0

    link.until(flood, honest)
    assert len(server.inbox.pending) <= 8  # chunks of credit
    before = server.ring.inserted_items
    villain.close()
    honest.insert(CHUNKS[1])

    def learn() -> bool:
        if batch := sampler.next(0):
            sampler.release(batch)
        return server.ring.inserted_items > before and not honest.outstanding

    link.until(learn, honest)


def test_outstanding_chunks_above_a_reduced_credit_are_no_offence(link: Link) -> None:
    server = link.serve(structs.replace(HELD, receive_bytes=1_000_000))
    link.sampler(slots=1)
    writers = [link.writer(f"actor-{index}") for index in range(4)]
    link.until(lambda: all(writer.has_credit for writer in writers), *writers)

    def push() -> bool:
        for writer in writers:
            while writer.has_credit:
                writer.insert(CHUNKS[0])
        return len(server.inbox.pending) > 20

    link.until(push, *writers)
    assert link.metrics.value("overdrawn") == 0


def test_invalid_chunks_put_an_incarnation_in_quarantine_and_the_next_is_welcome(link: Link, villain: Villain) -> None:
    server = link.server
    assert server is not None
    server.socket.quarantine._clock = lambda: 0.0  # nothing is forgiven, however slow the machine is
    link.until(lambda: villain.hears(WriterWelcome))
    for sequence in range(24):
        villain.chunk(sequence, crc32=1)
        if sequence % 8 == 7:  # within its credit
            # The last chunks may arrive after those that lead to quarantine; then they are not read.
            link.until(lambda through=sequence: link.metrics.value("rejected") > through or server.socket.quarantined)  # type: ignore[misc]
    link.until(lambda: villain.hears(Refused))
    reason = next(received.reason for received in villain.received if isinstance(received, Refused))
    assert "quarantine" in reason and "chunks with invalid values or parts (checksum differs)" in reason
    villain.received.clear()
    other = Villain(link)  # the same incarnation, over another connection
    link.until(lambda: other.hears(Refused))
    third = Villain(link, incarnation=667)
    link.until(lambda: third.hears(WriterWelcome))
    server.measure()
    assert " · quarantined 1 · " in describe_items(link.metrics.record())
    other.close()
    third.close()


def test_a_chunk_that_is_unfit_now_and_then_is_forgiven(link: Link, villain: Villain) -> None:
    link.until(lambda: villain.hears(WriterWelcome))
    for sequence in range(8):
        unfit = ({"crc32": 1}, {}, {"length": 9}, {})[sequence % 4]
        villain.chunk(sequence, at=sequence, **unfit)
    link.until(lambda: link.metrics.value("inserted_chunks") == 4)
    assert link.metrics.value("rejected") == 4 and link.server is not None and link.server.socket.quarantined == 0


def test_no_chunk_of_a_replaced_incarnation_is_inserted_twice_when_it_connects_again(link: Link, villain: Villain) -> None:
    assert link.server is not None
    table = link.server.ring
    link.until(lambda: villain.hears(WriterWelcome))
    for sequence in range(4):
        villain.chunk(sequence, at=sequence)
    link.until(lambda: table.size == 16)
    villain.hello("villain", 1)  # another incarnation, then again the first, which has received no acknowledgement
    villain.hello("villain", 666, first=0)
    for sequence in range(6):
        villain.chunk(sequence, at=sequence)
    link.until(lambda: table.size == 24)
    assert np.unique(every_item(table)["observation/position"][:, 0]).size == 24
    assert link.metrics.value("duplicates") == 4


def test_greetings_do_not_fill_the_memory_and_records_of_honest_actors_are_kept(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 900
    monkeypatch.setattr("replay.server.writers.MOST_INCARNATIONS", most)
    server, writer = link.serve(), link.writer("honest")
    link.until(lambda: writer.has_credit, writer)
    link.send(writer, CHUNKS[:1])
    for number in range(most + 50):
        server.writers.on_hello(b"%d" % number, WriterHello(f"n{number % 700}", number, PROTOCOL, SPEC.digest, 1, 0), 1)
    assert len(server.writers.known) <= most
    assert len(server.writers.connected) == 701, "each name once"
    assert ("honest", writer.incarnation) in server.writers.known
    server.writers._forgotten = True  # as after the record of an actor that had sent chunks
    for name, reason in (
        ("honest", ""),
        ("another", "another was disconnected too long: replay has deleted its record; restart it"),
    ):
        assert server.writers._refusal(WriterHello(name, writer.incarnation, PROTOCOL, SPEC.digest, 1, 1)) == reason


@pytest.mark.parametrize("batch_size", [1_000_000, 100_000])
def test_a_learner_cannot_lease_more_memory_than_the_limit(link: Link, batch_size: int) -> None:
    link.serve()
    sampler = link.sampler(batch_size=8)
    sampler._hello = structs.replace(sampler._hello, incarnation=1, batch_size=batch_size, slots=64)
    sampler.greet()
    with pytest.raises(ReplayRefused, match="slots of"):
        link.until(lambda: sampler.next(0))


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices with names; Windows has no files of slabs")
def test_no_file_that_a_learner_names_is_opened_unless_it_is_a_slab(link: Link, tmp_path: Path) -> None:
    server = link.serve()
    arrangement = layout(SPEC, 8)
    plain, pipe = tmp_path / "file", tmp_path / "pipe"
    plain.write_bytes(bytes(arrangement.slot_bytes * 2))
    os.mkfifo(pipe)
    with open(plain, "r+b") as opened:
        own = f"/proc/{os.getpid()}/fd/{opened.fileno()}"
        names = [str(plain), str(pipe), "/dev/zero", "/dev/tty", own, "/proc/self/mem"]
        for number, name in enumerate(names):
            hello = SamplerHello(f"learner-{number}", number, PROTOCOL, SPEC.digest, 8, 2, name)
            server.learners.on_hello(b"peer", hello, 1)
            assert server.learners.connected[-1].slab is None, name
    assert plain.read_bytes() == bytes(arrangement.slot_bytes * 2)


@pytest.mark.parametrize(
    "message",
    [
        SampleRequest(64, 2**62),
        SampleRequest(0, 1, 2**31 - 1, 1_000_000),
        PriorityUpdate(1_000_000),
        Insert(2**62, 100_000, 65_536, 2**32 - 1),
        Sample(1, 2),
        Hold(),
        WriterHello("\x7f~ ", 2**63 - 1, 2**62, "x", 100_000, 2**62),
        WriterHello("late", 1, PROTOCOL, SPEC.digest, 100_000, 2**62),
    ],
)
@pytest.mark.parametrize("parts", [[], [b""], [bytes(12)] * 3])
def test_wild_numbers_and_messages_for_others_do_not_end_the_server(
    link: Link, villain: Villain, message: object, parts: list[bytes]
) -> None:
    villain.client.send(SamplerHello("l", 1, PROTOCOL, SPEC.digest, 8, 2, ""))
    villain.client.send(message, parts)  # type: ignore[arg-type]
    villain.client.send(PriorityUpdate(4), [np.full(4, -(2**63)).tobytes() + np.full(4, np.nan, np.float32).tobytes()])
    villain.chunk(2**62)
    honest = link.writer("actor-0")
    link.until(lambda: honest.has_credit, honest)
    link.send(honest, CHUNKS[:1])


# ---- a hostile server


@pytest.fixture
def liar(tmp_path: Path) -> Iterator[Server]:
    made = Server(local_address(tmp_path, "liar"))
    yield made
    made.close()


def peer_of(liar: Server) -> bytes:
    arrival = liar.receive(30)
    assert arrival is not None
    return arrival[0]


def polled(writer: ExperienceWriter) -> bool:
    writer.poll()
    return True


def test_a_writer_ignores_impossible_acknowledgements(liar: Server) -> None:
    writer = ExperienceWriter(liar.address, "actor-0", 1, SPEC, 1)
    peer = peer_of(liar)
    liar.send(peer, WriterWelcome(1, 1, 2**62, 2**62))
    wait_until(lambda: polled(writer) and writer.impossible == 1, what="the welcome is counted")
    assert not writer.has_credit
    liar.send(peer, WriterWelcome(1, 1, 0, 2**62))
    wait_until(lambda: polled(writer) and writer.has_credit, what="credit")
    assert writer.credit == MOST_CREDIT_BYTES
    for chunk in CHUNKS[:3]:
        writer.insert(chunk)
    liar.send(peer, Ack(4))
    liar.send(peer, Ack(2))
    liar.send(peer, Ack(1))
    wait_until(lambda: polled(writer) and writer.outstanding == 1, what="the possible one is taken")
    assert writer.impossible == 2 and writer.acknowledged_steps == 8
    for number in range(2000):
        liar.send(peer, (Greet(), Credit(0), Hold(), Sample(1, 1))[number % 4])
    wait_until(lambda: polled(writer) and writer.credit == 0, what="it has read on")
    assert writer.outstanding == 1
    writer.close()


@pytest.mark.parametrize("sharded", [False, True])
def test_a_sampler_ignores_batches_that_it_has_not_requested(liar: Server, sharded: bool) -> None:
    own = "learner", 1, SPEC, 8, 2
    sampler = ShardedSampler([liar.address], *own, 1, shared=False) if sharded else Sampler(liar.address, *own, shared=False)
    peer = peer_of(liar)
    liar.send(peer, SamplerWelcome(1, False))
    for slot, generation, parts in ((0, 99, []), (63, 1, []), (0, 1, [b"short"]), (1, 2, [b"x"])):
        liar.send(peer, Sample(slot, generation), parts)
    wait_until(lambda: (sampler.next(0), sampler.impossible >= 3)[1], what="all are counted")
    assert sampler.next(0) is None
    sampler.close()
