"""The segment log: whatever the disk does, what was written whole is read back, and what was not is counted."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.log import segment_log
from replay.log.segment_log import Background, SegmentLog
from replay.log.segments import CHECKSUM, MAGIC, NUMBERS, ChunkHeader, LogRefused, Scan, pack_record, read_chunk, scan, segments
from tests.replay.examples import make_spec, stream_chunks
from transport.compression import CorruptChunk, crc32, pack_chunk
from transport.experience import ExperienceSpec
from transport.messages.replay import Insert

SPEC = make_spec(length=4, stack=2, n_step=1)
CHUNKS = stream_chunks(SPEC, {5: "truncated", 11: "terminated"}, 60)


class Writing:
    """A log that chunks are appended to, as the server would."""

    def __init__(self, folder: Path, segment_chunks: int = 4, spec: ExperienceSpec = SPEC) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.background = folder, Background()
        self.found = scan(folder, spec)
        self.next_key = self.found.entries[-1].header.key + 1 if self.found.entries else 0
        self.log = SegmentLog(folder, spec, segment_chunks, self.found, self.background)

    def append(self, count: int, writer: str = "actor-0") -> None:
        for _ in range(count):
            chunk, (_, sequence) = CHUNKS[self.next_key % len(CHUNKS)], self.log.writers.get(writer, (7, 0))
            parts = pack_chunk(SPEC, chunk)
            message = Insert(sequence, chunk.stream, chunk.length, crc32(parts))
            self.log.append(self.next_key, writer, 7, message, parts)
            self.next_key += 1

    def settle(self) -> None:
        """Waits until the background has done what it was given."""
        done = threading.Event()
        self.background.submit(done.set)
        assert done.wait(60)

    def close(self) -> None:
        self.log.close()
        self.background.close()


def sound_keys(found: Scan) -> list[int]:
    """The keys whose chunks are, column by column, what was written."""
    keys = []
    for entry in found.entries:
        with open(entry.path, "rb") as file:
            try:
                columns = read_chunk(file, entry, SPEC).columns
            except CorruptChunk:
                continue
        written = CHUNKS[entry.header.key % len(CHUNKS)].columns
        assert all(np.array_equal(written[name], columns[name]) for name in written)
        keys.append(entry.header.key)
    return keys


def written(folder: Path, chunks: int, segment_chunks: int = 100) -> Path:
    """A log of some chunks; returns its last segment."""
    writing = Writing(folder, segment_chunks)
    writing.append(chunks)
    writing.close()
    return segments(folder)[-1]


def test_what_was_appended_is_read_back_in_order_with_its_writers(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    writing.append(7, "actor-0")
    writing.append(3, "actor-1")
    found = scan(tmp_path, SPEC)  # not closed: a process that is killed closes nothing
    assert sound_keys(found) == list(range(10))
    assert found.writers == {"actor-0": (7, 7), "actor-1": (7, 3)} and found.torn == found.damaged == 0
    writing.close()
    again = Writing(tmp_path)
    again.append(2, "actor-1")
    again.close()
    assert sound_keys(scan(tmp_path, SPEC)) == list(range(12))


def test_a_segment_goes_when_its_last_chunk_is_evicted_but_what_it_said_of_writers_stays(tmp_path: Path) -> None:
    writing = Writing(tmp_path, segment_chunks=4)
    writing.append(4, "actor-gone")
    writing.append(8, "actor-0")
    before = writing.log.total_bytes
    writing.log.evict_below(4)
    writing.log.evict_below(7)
    writing.append(1)
    writing.close()
    assert [path.name for path in segments(tmp_path)] == [f"{key:016d}.segment" for key in (4, 8, 12)]
    found = scan(tmp_path, SPEC)
    assert found.writers == {"actor-gone": (7, 4), "actor-0": (7, 9)}
    assert before > writing.log.total_bytes == sum(path.stat().st_size for path in segments(tmp_path))


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)], ids=["some bytes", "any byte"])
def test_a_torn_tail_costs_the_chunk_that_was_being_written_and_nothing_else(tmp_path: Path, every: int) -> None:
    last = written(tmp_path / "whole", 3)
    whole = last.read_bytes()
    ends = [len(whole)]  # after how many bytes how many chunks are whole, from the last on
    for chunks in (2, 1, 0):
        header = next(entry for entry in scan(tmp_path / "whole", SPEC).entries if entry.header.key == chunks)
        text = len(msgspec.msgpack.encode(header.header))
        ends.insert(0, header.offset - text - 20)
    near = {end + by for end in ends for by in range(-2, 3)}
    for size in sorted(near & {*range(len(whole))} | {*range(0, len(whole), every)}):
        last.write_bytes(whole[:size])
        found = scan(last.parent, SPEC)
        chunks = sum(size >= end for end in ends[1:])
        assert sound_keys(found) == list(range(chunks))
        assert found.torn == (size not in (0, *ends))
        assert scan(last.parent, SPEC).torn == 0, "a torn tail is cut off"
        writing = Writing(last.parent)
        writing.append(1)
        writing.close()
        assert sound_keys(scan(last.parent, SPEC)) == list(range(chunks + 1))
        for path in segments(last.parent):
            path.unlink()


@settings(max_examples=60, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_costs_one_chunk_at_most(tmp_path_factory: pytest.TempPathFactory, place: float, bit: int) -> None:
    folder = tmp_path_factory.mktemp("log")
    last = written(folder, 6)
    data = bytearray(last.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    last.write_bytes(data)
    found = scan(folder, SPEC)
    sound = sound_keys(found)
    lost = set(range(6)) - set(sound)
    assert len(lost) <= 1 and sound == sorted(sound)
    if lost and lost != {5}:  # where it was the last one, damage looks like a torn tail
        assert found.damaged == 1 or len(found.entries) == 6
    shutil.rmtree(folder)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["append", "evict", "restart", "tear"]), max_size=25), st.integers(1, 5))
def test_any_history_of_appends_evictions_and_crashes_keeps_what_was_whole(
    tmp_path_factory: pytest.TempPathFactory, history: list[str], segment_chunks: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    writing = Writing(folder, segment_chunks)
    expected: list[int] = []
    oldest = 0
    for what in history:
        if what == "append":
            writing.append(2)
            expected += [writing.next_key - 2, writing.next_key - 1]
        elif what == "evict":
            oldest = writing.next_key - writing.next_key // 3
            writing.log.evict_below(oldest)
            writing.settle()
        else:
            writing.close()
            if what == "tear" and segments(folder):
                with open(segments(folder)[-1], "ab") as file:
                    file.write(b"\x89HRseg1\n and no more")
            writing = Writing(folder, segment_chunks)
            assert writing.found.torn <= 1 and writing.found.damaged == 0
            if expected:
                writing.next_key = expected[-1] + 1
        held = sound_keys(scan(folder, SPEC))
        assert [key for key in held if key >= oldest] == [key for key in expected if key >= oldest]
    writing.close()
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("change", "body"),
    [({"key": "x"}, b"abc"), ({"type": "nothing"}, b"abc"), ({"sizes": [5]}, b"abc"), ({"key": 1}, b"abc"), ({}, b"")],
)
def test_a_header_with_a_sound_checksum_may_say_anything_and_costs_itself_alone(
    tmp_path: Path, change: dict[str, object], body: bytes
) -> None:
    last = written(tmp_path, 2)
    true = {"type": "chunk", "key": 2, "writer": "actor-0", "incarnation": 7, "sequence": 2, "stream": 0, "length": 4}
    text = msgspec.msgpack.encode(true | {"crc32": 0, "sizes": [3]} | change) if body else bytes(20)
    numbers = NUMBERS.pack(len(text), len(body))
    forged = b"".join([MAGIC, numbers, CHECKSUM.pack(zlib.crc32(text, zlib.crc32(numbers))), text, body])
    with open(last, "ab") as file:
        file.write(forged + pack_record(ChunkHeader(9, "actor-0", 7, 9, 0, 4, 0, (3,)), [b"abc"]))
    found = scan(tmp_path, SPEC)
    assert sound_keys(found) == [0, 1] and found.entries[-1].header.key == 9 and found.damaged == 1


def test_what_a_power_cut_would_take_is_known_until_it_is_on_the_disk(tmp_path: Path) -> None:
    writing = Writing(tmp_path, segment_chunks=4)
    assert writing.log.unsynced == (0, 0)
    writing.append(3)
    assert writing.log.unsynced.chunks == 3 and 0 < writing.log.unsynced.bytes < writing.log.total_bytes
    writing.log.sync()
    writing.settle()
    assert writing.log.unsynced == (0, 0)
    writing.append(6)  # a segment that is full goes to the disk by itself
    writing.settle()
    assert writing.log.unsynced.chunks == 1
    writing.close()
    assert writing.log.unsynced == (0, 0)


class Broken:
    """A file that takes `room` bytes more, and then raises an error."""

    def __init__(self, file: Any, room: int, error: int) -> None:
        self.file, self.room, self.error = file, room, OSError(error, os.strerror(error))

    def write(self, data: memoryview) -> int:
        if not self.room:
            raise self.error
        part = data[: self.room]
        self.room -= len(part)
        return int(self.file.write(part))

    def __enter__(self) -> object:
        return self.file.__enter__()

    def __exit__(self, *failure: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> object:
        return getattr(self.file, name)


class Gone(Broken):
    """A file of a disk that does not answer: what was begun cannot be taken back."""

    def seek(self, *place: object) -> int:
        raise self.error


def test_a_full_disk_keeps_the_run_says_so_once_and_is_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writing = Writing(tmp_path)
    writing.append(3)
    file = writing.log._file
    writing.log._file = Broken(file, 25, errno.ENOSPC)  # type: ignore[assignment]
    writing.append(5)
    assert writing.log.unlogged == 5
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and "No space left on device" in said and "in memory only" in said
    assert sound_keys(scan(tmp_path, SPEC)) == [0, 1, 2] and scan(tmp_path, SPEC).torn == 0, "nothing of it stays"
    writing.log._file = file
    writing.log._retry_at = 0.0  # it is time to try again
    writing.append(1)
    assert writing.log.unlogged == 5, "it is written again"
    assert "5 chunks are in memory only" in capsys.readouterr().out
    writing.append(2)
    writing.close()
    found = scan(tmp_path, SPEC)
    assert sound_keys(found) == [0, 1, 2, 8, 9, 10] and found.writers["actor-0"] == (7, writing.next_key)


@pytest.mark.parametrize("kind", [Broken, Gone])
def test_a_disk_that_takes_no_new_segment_leaves_none_behind_and_is_synced_again_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: type[Broken]
) -> None:
    monkeypatch.setattr(segment_log, "RETRY_SECONDS", 0.0)
    opened = segment_log.open_new
    writing = Writing(tmp_path)
    monkeypatch.setattr(segment_log, "open_new", lambda path: kind(opened(path), 0, errno.EIO))
    writing.append(2)
    writing.settle()
    monkeypatch.setattr(segment_log, "open_new", opened)
    writing.append(3)
    writing.log.sync()
    writing.settle()
    assert writing.log.unsynced == (0, 0) and writing.log.unlogged == 2
    assert "could not write to the disk" not in capsys.readouterr().out
    writing.close()
    assert sound_keys(scan(tmp_path, SPEC)) == [2, 3, 4]


@pytest.mark.parametrize(
    ("magic", "length", "reason"),
    [(MAGIC, 8, "--fresh"), (b"\x89HRseg9\n", 4, r"has format 9, .* reads format 2: start with --fresh, or delete")],
)
def test_a_log_of_another_spec_or_format_is_refused_in_one_line_that_says_what_to_do(
    tmp_path: Path, magic: bytes, length: int, reason: str
) -> None:
    path = written(tmp_path, 2)
    path.write_bytes(path.read_bytes().replace(MAGIC, magic))
    with pytest.raises(LogRefused, match=reason) as refusal:
        scan(tmp_path, make_spec(length=length, stack=2, n_step=1))
    assert "\n" not in str(refusal.value)
