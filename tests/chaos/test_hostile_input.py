"""Messages that are too large, broken, endless or too many: each costs its sender, and nobody else."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import cramjam
import msgpack
import msgspec
import numpy as np
import psutil
import pytest
import zstandard
from msgspec import structs

from replay.table.layout import slot_bytes
from tests.chaos.crew import crew
from tests.chaos.raw import MORE, Raw, frame
from tests.chaos.rows import Row, length
from tests.chaos.siege import CONFIG, SPEC, Siege
from tests.chaos.villain import hello
from tests.harness.waiting import ROOT, wait_until
from transport.compression import CorruptChunk, decompress
from transport.messages.codec import pack, unpack
from transport.messages.fields import MAX_HEADER_BYTES, MalformedMessage
from transport.messages.replay import Hold

pytestmark = [pytest.mark.chaos, pytest.mark.alone]
MIB = 1 << 20


@pytest.mark.row("S6", "a message larger than allowed", "peer dropped, RSS +<16 MiB, others unaffected")
def test_a_message_beyond_the_limit_costs_its_sender_the_connection(row: Row, tmp_path: Path) -> None:
    times = row.times(2, 20)
    with Siege(tmp_path, "tcp") as siege:
        honest = siege.honest(20 + 2 * times)
        before, quiet = siege.resident, honest.rate(1)
        dropped = 0
        for _ in range(times):
            claims = [frame(b"", claimed=1 << 40), frame(b"x" * 1000, MORE, claimed=1 << 62)]
            claims += [frame(bytes(MIB + 1)), frame(b"", claimed=(1 << 64) - 1)]
            for claim in claims:
                raw = Raw(siege.address)
                with suppress(OSError):
                    raw.socket.sendall(claim)
                dropped += raw.gone(row.limit(5))
                raw.close()
        growth, under = siege.resident - before, honest.rate(1)
        siege.end()
    row.measured(attempts=4 * times, dropped=dropped, growth_mib=growth / MIB, quiet=quiet, under=under, **siege.outcome)
    assert dropped == 4 * times and growth < 16 * MIB
    least = 0.1 if length() == "short" else 0.9  # a second each: something else may take a part of one
    assert under > least * quiet and siege.sound


@pytest.mark.row("S6", "a message whose parts never end", "bounded by what replay may have, given back, nothing lost")
def test_a_message_without_end_does_not_take_more_memory_than_replay_may_have(row: Row, tmp_path: Path) -> None:
    row.times(0, 1)
    config = structs.replace(CONFIG, capacity=160_000, receive_bytes=1_000_000)
    with Siege(tmp_path, "tcp", config) as siege:
        honest, most = siege.honest(60), 0
        before = siege.resident
        raw = Raw(siege.address)
        part = frame(bytes(MIB), MORE)
        dropped = False
        for _ in range(1500):
            try:
                raw.socket.sendall(part)
            except OSError:
                dropped = True
                break
            most = max(most, siege.resident)
        wait_until(lambda: siege.resident < before + 64 * MIB, what="the memory is given back")
        after = honest.rate(2)
        raw.close()
        siege.end()
    note = "libzmq keeps the parts of an unfinished message out of sight: all connections are closed at the limit of the process"
    row.measured(note, dropped=dropped, growth_mib=(most - before) / MIB, rate_after=after, **siege.outcome)
    assert dropped and siege.sound
    assert most - before < 700 * MIB and "closed all" in siege.text


@pytest.mark.row("S6", "messages whose parts never end, to the supervisor", "bounded, given back; the run goes on")
def test_messages_without_end_do_not_take_the_supervisor_down(row: Row, tmp_path: Path) -> None:
    seconds = row.times(0, 12)
    pieces, sent, most = frame(bytes(MAX_HEADER_BYTES), MORE) * 16, 0, 0
    with crew(tmp_path, actors=2, bind="127.0.0.1") as run:
        assert run.supervisor is not None
        supervisor, pids = psutil.Process(run.supervisor.pid), [run.pid(name) for name in ("replay", "actor-0", "actor-1")]
        address, before = run.run_dir.endpoint("supervisor"), supervisor.memory_info().rss
        assert address is not None
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(OSError):
                raw = Raw(address)
                while time.monotonic() < end:
                    raw.socket.sendall(pieces)
                    sent += len(pieces)
                    most = max(most, supervisor.memory_info().rss)
            raw.close()
        run.until(lambda: supervisor.memory_info().rss < before + 64 * MIB, "the memory is given back")
        closed, steps = len(run.lines("closed all")), run.status["steps"]
        run.until(lambda: run.status["steps"] > steps, "steps")
        assert [run.pid(name) for name in ("replay", "actor-0", "actor-1")] == pids
        run.down()
    row.measured(seconds=seconds, sent_mib=sent / MIB, growth_mib=(most - before) / MIB, closed=closed)
    assert closed and most - before < 700 * MIB  # 256, and what comes within a turn: as for replay


@pytest.fixture
def small_heap() -> Iterator[None]:
    """What hundreds of tests have left in this process is none of a decoder's time: a collection of it takes 200 ms."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.row("S7", "a decompression bomb", "rejected within 10 ms, RSS +<16 MiB")
@pytest.mark.usefixtures("small_heap")
def test_a_decompression_bomb_is_refused_before_it_goes_off(row: Row) -> None:
    times = row.times(20, 2000)
    plain = bytes(64 * MIB)
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=27)
    bombs = [
        ("lz4", bytes(cramjam.lz4.compress_block(plain, store_size=False))),
        ("lz4", bytes(cramjam.lz4.compress(plain))),
        ("lz4", b"\x04\x22\x4d\x18\x6c\x40" + (2 << 30).to_bytes(8, "little") + bytes(20)),  # a frame of 2 GiB
        ("lz4", b"\x1f\x00" + b"\x01\x00" + b"\xff" * 60_000),  # a match that goes on and on
        ("zstd", zstandard.ZstdCompressor().compress(plain)),
        ("zstd", zstandard.ZstdCompressor(write_content_size=False).compress(plain)),
        ("zstd", zstandard.ZstdCompressor(compression_params=parameters).compressobj().compress(plain)),
        ("zstd", b"\x28\xb5\x2f\xfd\xe0" + (2 << 30).to_bytes(8, "little") + bytes(20)),  # claims 2 GiB, in one segment
        ("zstd", b"\x28\xb5\x2f\xfd\x00\xa8" + bytes(20)),  # a window of 2 GiB
    ]
    out = np.zeros(50_000, np.uint8)
    process, slowest = psutil.Process(), 0.0
    del plain
    before = process.memory_info().rss
    for codec, bomb in bombs * times:
        began = time.thread_time()
        with pytest.raises(CorruptChunk):
            decompress(codec, bomb, out)
        slowest = max(slowest, time.thread_time() - began)
    growth = process.memory_info().rss - before
    row.measured(bombs=len(bombs) * times, slowest_ms=slowest * 1000, growth_mib=growth / MIB)
    assert slowest < row.limit(0.010) and growth < 16 * MIB


@pytest.mark.row("S8", "MessagePack bombs", "10,000 hostile blobs: 0 crashes, each within 10 ms")
@pytest.mark.usefixtures("small_heap")
def test_messagepack_bombs_are_refused(row: Row) -> None:
    count = row.times(2000, 10_000)
    generator, slowest, refused = random.Random(8), 0.0, 0
    heads = [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9", b"\xc8", b"\xc7\xff", b"\xdc", b"\xde", b"\x91", b"\x81", b"\xd8"]
    for number in range(count):
        head = heads[number % len(heads)]
        body = [
            head + b"\xff\xff\xff\xff" + generator.randbytes(50),
            head * generator.randrange(1, 60_000 // len(head)),
            b"\x82\xa4type\xa4hold" + b"\xa4type" + head + b"\xff" * 8,
            b"\xdf\x00\x00\x02\x00" + b"\xa1a\x01" * 512,
            b"\xde\x01\x00" + b"".join(msgpack.packb(f"k{index}") + head for index in range(256)),
            head + generator.randbytes(generator.randrange(2000)),
        ][generator.randrange(6)]
        began = time.thread_time()
        try:
            unpack(body)
        except MalformedMessage:
            refused += 1
        slowest = max(slowest, time.thread_time() - began)
    row.measured(blobs=count, refused=refused, slowest_ms=slowest * 1000)
    assert refused == count and slowest < row.limit(0.010)


@pytest.mark.row(
    "S9",
    "an actor sends nonsense, 1,000 messages a second",
    "quarantined within 2 s, others' rate -<10%, server never exits",
)
@pytest.mark.parametrize("kind", ["broken", "repeated", "unfit"])
def test_a_peer_that_sends_nonsense_is_quarantined_and_no_other_suffers(row: Row, tmp_path: Path, kind: str) -> None:
    seconds = row.times(0, 12, 60)
    with Siege(tmp_path) as siege:
        honest = siege.honest(3 * seconds + 40)
        quiet = honest.rate(seconds)
        before, began = honest.acknowledged, time.monotonic()
        villain = subprocess.run(
            [sys.executable, "-m", "tests.chaos.villain", siege.address, kind, str(seconds)],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        under = (honest.acknowledged - before) / (time.monotonic() - began)
        told = msgspec.json.decode(villain.stdout)
        alive = not siege.dead
        record = siege.end()
    figures = {name: int(record.get(name, 0)) for name in ("malformed", "rejected", "overdrawn", "unread", "gaps", "unheard")}
    row.measured(kind, quarantined=int(record["quarantined"]), **told, **figures)
    row.measured(quiet=quiet, under=under, **siege.outcome, processor=record.get("processor_fraction"))
    assert alive and record["quarantined"] >= 1 and 0 < told["within_seconds"] < row.limit(2)
    least = 0.1 if length() == "short" else 0.9  # a second each: something else may take a part of one
    assert under > least * quiet and siege.sound


@pytest.mark.row("S9", "10,000 greetings under new names", "memory bounded, others served, nothing taken twice")
def test_greetings_without_end_do_not_fill_the_memory(row: Row, tmp_path: Path) -> None:
    count = row.times(0, 20_000, 50_000)
    with Siege(tmp_path) as siege:
        honest = siege.honest(count / 200 + 60)
        before, inserted = siege.resident, honest.inserted
        sent = refused = 0
        while sent < count:
            try:
                raw = Raw(siege.address)
            except OSError:
                continue
            with suppress(OSError):
                for _ in range(150):
                    raw.send(hello(f"name-{sent}", sent))
                    sent += 1
            refused += raw.gone(0.2)
            raw.close()
        own = (honest.inserted - inserted) * slot_bytes(SPEC)  # what the honest actor has sent rests in the table, as it should
        growth = siege.resident - before - own
        after = honest.rate(2)
        siege.end()
    row.measured(greetings=sent, hung_up=refused, growth_mib=growth / MIB, rate_after=after, **siege.outcome)
    assert growth < 16 * MIB and after > 0 and siege.sound


@pytest.mark.row("S9", "a peer fills its queue and hangs up while the server is busy", "server never exits")
def test_a_peer_that_fills_its_queue_and_hangs_up_does_not_end_the_server(row: Row, tmp_path: Path) -> None:
    peers = row.times(3, 60)
    script = (
        "import sys, time; from transport.sockets.server import Server\n"
        "server = Server(sys.argv[1], receive_queue=4)\n"
        "print('bound', flush=True); sys.stdin.readline(); time.sleep(2.5)\n"
        "while server.receive(0.2): pass"
    )
    address = f"ipc://{tmp_path}/s"
    with subprocess.Popen([sys.executable, "-c", script, address], cwd=ROOT, stdin=-1, stdout=-1, stderr=-1, text=True) as server:
        assert server.stdin and server.stdout
        server.stdout.readline()
        for _ in range(peers):
            raw = Raw(address)
            raw.socket.settimeout(0.2)
            with suppress(OSError):
                for _ in range(5000):
                    raw.send(pack(Hold()), bytes(1000))
            raw.close()
        _, errors = server.communicate("go on\n", timeout=60)
    row.measured(peers=peers, exit=server.returncode)
    assert server.returncode == 0, errors
