"""What a process of a run may take is bounded, and what it sends is what it had when it sent it."""

from __future__ import annotations

import os
import random
import re
import time
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest

from replay.client.sampler import Sampler
from replay.client.writer import ExperienceWriter
from tests.chaos.links import Feeders
from tests.chaos.rows import Row
from tests.chaos.streams import counting_replay, counting_spec
from tests.harness.replay import ReplayProcess
from tests.harness.waiting import wait_until
from transport.experience import Chunk, ExperienceSpec
from transport.lifetime import new_incarnation
from transport.messages.replay import Ack, Insert
from transport.sockets.client import Client
from transport.sockets.server import Server

pytestmark = [pytest.mark.chaos, pytest.mark.alone]
ACTORS = 8
SPARE_BYTES = 64 << 20
MOST_BYTES = 8 << 20
MIB = 1 << 20
BATCH_SIZE, SLOTS = 64, 2


def noise(spec: ExperienceSpec) -> Chunk:
    """A chunk of what cannot be compressed."""
    rows = spec.rows(spec.chunk_length)
    columns = {column.name: np.zeros((rows, *column.shape), column.dtype) for column in spec.columns}
    columns["observation"][:] = np.random.default_rng(0).integers(0, 256, columns["observation"].shape)
    columns["valid"][:] = 1
    return Chunk(0, spec.chunk_length, columns)


@pytest.mark.row(
    "R11",
    "8 actors send as fast as they can",
    "memory of replay <= capacity + actors x credit x largest message + 64 MiB",
)
@pytest.mark.skipif(os.name != "posix", reason="resident memory is told by the system")
def test_replay_takes_no_more_memory_than_it_says(row: Row, tmp_path: Path) -> None:
    seconds = row.times(4, 45, 1800)
    spec = counting_spec(chunk_length=32, side=84)
    config = counting_replay(capacity=8_000, durable=True)
    chunk = noise(spec)
    with ReplayProcess(tmp_path / "run", spec, config) as replay:
        replay.start()
        wait_until(lambda: replay.bound, what="replay bound")
        process = psutil.Process(replay.pid)
        at_rest = process.memory_info().rss
        writers = [ExperienceWriter(replay.address, f"actor-{n}", new_incarnation(), spec, 1) for n in range(ACTORS)]
        end, most, most_of_first_half, credit = time.monotonic() + seconds, 0, 0, 0
        while time.monotonic() < end or sum(writer.acknowledged_steps for writer in writers) <= config.capacity:
            for writer in writers:
                writer.poll()
                if writer.has_credit:
                    writer.insert(chunk)
                credit = max(credit, writer.credit)
            most = max(most, process.memory_info().rss)
            if time.monotonic() < end - seconds / 2:
                most_of_first_half = most
        steps = sum(writer.acknowledged_steps for writer in writers)
        for writer in writers:
            writer.close()
        held = re.search(r"keeps at most ([\d,]+) items, in ([\d,.]+) MB", replay.text)
    assert held is not None
    capacity = int(float(held[2].replace(",", "")) * 1e6)
    allowed = capacity + ACTORS * credit + SPARE_BYTES
    row.measured(
        f"the ring turned over {steps / config.capacity:.1f} times",
        seconds=seconds,
        most_bytes=most,
        allowed_bytes=allowed,
        capacity_bytes=capacity,
        at_rest_bytes=at_rest,
        second_half_grew_bytes=most - most_of_first_half,
    )
    assert steps > config.capacity
    assert most <= allowed


@pytest.mark.row(
    "R10",
    "the learner works at a tenth of its speed",
    "replay's memory does not grow, samples per insert in the band",
)
def test_a_slow_learner_holds_the_actors_back(row: Row, tmp_path: Path) -> None:
    seconds = row.times(0, 40, 600)
    spec = counting_spec()
    config = counting_replay(capacity=5_000, min_size=64, samples_per_insert_low=2.0, samples_per_insert_high=4.0)
    with Feeders(tmp_path, spec) as feeders, ReplayProcess(tmp_path / "run", spec, config) as replay:
        feeders.log = replay.run_dir.segments
        replay.start()
        feeders.until(lambda: replay.bound, "replay bound")
        feeders.add(replay.address, ACTORS)
        feeders.until(
            lambda: sum(feeders.acknowledged) > config.capacity, "a full table"
        )  # no actor is blocked without a learner
        with closing(Sampler(replay.address, "learner", new_incarnation(), spec, BATCH_SIZE, SLOTS)) as sampler:

            def learn(seconds: float, pause_seconds: float) -> tuple[int, int, list[int]]:
                """Items drawn and steps acknowledged in so long, and replay's memory, twice a second."""
                held: list[int] = []
                drawn, before, next_draw = 0, sum(feeders.acknowledged), 0.0
                end = time.monotonic() + seconds
                while (now := time.monotonic()) < end:
                    feeders.turn()
                    if now >= next_draw and (batch := sampler.next(0)) is not None:
                        sampler.answer(batch, np.ones(BATCH_SIZE, np.float32))
                        drawn, next_draw = drawn + BATCH_SIZE, now + pause_seconds
                    if len(held) < (now - end + seconds) * 2:
                        held.append(process.memory_info().rss)
                return drawn, sum(feeders.acknowledged) - before, held

            process = psutil.Process(replay.pid)
            learn(2, 0)  # until both hold each other within the band
            quickly, _, _ = learn(seconds / 3, 0)
            drawn, inserted, held = learn(seconds, 10 * BATCH_SIZE * seconds / 3 / quickly)
            window = sum(feeder.writer.outstanding for feeder in feeders.feeders) * spec.chunk_length
        feeders.drain()
        replay.kill()
        verdict = feeders.verdict()
    half = len(held) // 2
    growth = max(held[half:]) - max(held[:half])
    row.measured(
        verdict.text,
        seconds=seconds,
        drawn_per_second=drawn / seconds,
        drawn_per_second_before=quickly / seconds * 3,
        samples_per_insert=drawn / inserted,
        second_half_grew_bytes=growth,
        **verdict.figures,
    )
    slack = SLOTS * BATCH_SIZE
    assert config.samples_per_insert_low * (inserted - window) - slack <= drawn
    assert drawn <= config.samples_per_insert_high * (inserted + window) + slack
    assert drawn / seconds < quickly / seconds * 3 / 5
    assert growth <= MIB and verdict.sound


@pytest.mark.row(
    "R30", "a buffer is filled anew as soon as it has been sent", "1e6 messages of 1 B to 8 MiB: none with a wrong checksum"
)
def test_what_is_sent_is_what_the_buffer_held(row: Row, tmp_path: Path) -> None:
    times = row.times(600, 20_000, 1_000_000)
    chance, generator = random.Random(30), np.random.default_rng(30)
    server = Server(f"ipc://{tmp_path}/server")
    client = Client(server.address)
    buffer = generator.integers(0, 256, MOST_BYTES, np.uint8)
    wrong = received = sent = carried = 0
    try:
        while received < times:
            while sent < times and sent - received < 8:
                size = int(MOST_BYTES ** chance.random())  # as many small ones as large ones
                other = size // 2
                parts = [buffer[:size].data, buffer[other:size].data]
                checksum = zlib.crc32(parts[1], zlib.crc32(parts[0]))
                assert client.send(Insert(sent, 0, 1, checksum), parts)
                sent += 1
                buffer[:size] += np.uint8(1 + sent % 255)  # at once
            while (arrival := server.receive()) is not None:
                peer, message, got = arrival
                wrong += message.sequence != received or zlib.crc32(got[1], zlib.crc32(got[0])) != message.crc32
                carried += sum(map(len, got))
                received += 1
                assert server.send(peer, Ack(received))
            while client.receive() is not None:
                pass
    finally:
        client.close()
        server.close()
    row.measured(messages=times, bytes=carried, wrong_checksums=wrong)
    assert wrong == 0
