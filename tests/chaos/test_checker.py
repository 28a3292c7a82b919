"""The checker of the rehearsals finds each fault that is planted, and nothing where nothing is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from replay.log.segment_log import Background, SegmentLog
from replay.log.segments import Scan, scan, segments
from tests.chaos.checker import Stored, judge, read_log
from tests.chaos.history import Life, Recorder, pack_id, read_histories, read_life, recording
from tests.chaos.streams import CountingStream, counting_replay, counting_spec
from tests.harness.link import Link
from transport.compression import crc32, pack_chunk
from transport.experience import Chunk
from transport.messages.replay import Insert

SPEC = counting_spec(chunk_length=8)


def a_life(name: str = "actor-0", incarnation: int = 1, identity: int = 7, began: float = 0.0) -> Life:
    """Three chunks of four steps; two of them are acknowledged, a fourth has been begun."""
    steps = [pack_id(identity, 0, step) for step in range(14)]
    inserts = {sequence: np.array(steps[4 * sequence : 4 * sequence + 4]) for sequence in range(3)}
    return Life(name, incarnation, began, steps, inserts, acknowledged=2)


def what_was_stored(*lives: Life, chunks: int = 3) -> Stored:
    stored = Stored()
    for life in lives:
        for sequence in range(chunks):
            key = len(stored.lives)
            stored.lives[key], stored.sequences[key] = (life.name, life.incarnation), sequence
            stored.ids += life.inserts[sequence].tolist()
            stored.chunks += [key] * len(life.inserts[sequence])
    return stored


Stores = Callable[[], tuple[list[Life], Stored]]


def lost_item() -> tuple[list[Life], Stored]:
    stored = what_was_stored(a_life())
    del stored.ids[2], stored.chunks[2]
    return [a_life()], stored


def unattempted_item() -> tuple[list[Life], Stored]:
    stored = what_was_stored(a_life())
    stored.ids.append(pack_id(7, 5, 0))
    stored.chunks.append(2)
    return [a_life()], stored


def stream_of_two_lives() -> tuple[list[Life], Stored]:
    first, second = a_life(), a_life(incarnation=2, began=1.0)
    second.steps = [packed + 100 for packed in second.steps]
    second.inserts = {sequence: ids + 100 for sequence, ids in second.inserts.items()}
    return [first, second], what_was_stored(first, second)


def chunk_of_another_life() -> tuple[list[Life], Stored]:
    first, second = a_life(), a_life(name="actor-1", incarnation=2, identity=8)
    stored = what_was_stored(first, second)
    stored.lives[2] = "actor-1", 2
    return [first, second], stored


def three_lives_of_which_the_second_was_evicted() -> tuple[list[Life], Stored]:
    return [a_life(incarnation=n, identity=n, began=float(n)) for n in (1, 2, 3)], Stored(evicted={"actor-0": (2, 3)})


CASES: dict[str, tuple[Stores, dict[str, int]]] = {
    "sound": (lambda: ([a_life()], what_was_stored(a_life())), {}),
    "never acknowledged": (lambda: ([a_life()], what_was_stored(a_life(), chunks=2)), {}),
    "no step recorded": (lambda: ([replace(a_life(), steps=[])], what_was_stored(a_life())), {}),
    "a chunk lost": (lambda: ([a_life()], what_was_stored(a_life(), chunks=1)), {"lost": 4}),
    "an item lost": (lost_item, {"lost": 1}),
    "never attempted": (unattempted_item, {"unexpected": 1, "mixed": 1}),
    "stored under two keys": (lambda: ([a_life()], what_was_stored(a_life(), a_life())), {"doubled": 12}),
    "a stream of two lives": (stream_of_two_lives, {"mixed": 12}),
    "a chunk of another life": (chunk_of_another_life, {"mixed": 8}),  # each item twice: the stream has two owners
    "first chunk evicted": (lambda: ([a_life()], Stored(evicted={"actor-0": (1, 1)})), {"lost": 4}),
    "another actor evicted": (lambda: ([a_life()], Stored(evicted={"actor-1": (9, 9)})), {"lost": 8}),
    "earlier lives evicted": (three_lives_of_which_the_second_was_evicted, {"lost": 8}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_planted_fault_is_found_and_nothing_where_nothing_is(case: str) -> None:
    stores, wrong = CASES[case]
    verdict = judge(*stores())
    assert {name: number for name, number in verdict.figures.items() if number} == wrong and verdict.sound == (not wrong)


def test_what_was_evicted_and_recovered_is_counted_and_examples_are_told() -> None:
    sound = judge([a_life()], what_was_stored(a_life()))
    assert sound.text == "14 steps by 1 incarnations, 8 acknowledged, 12 stored (4 recovered)"
    assert "lost: stream 7 episode 0 step 4" in judge([a_life()], what_was_stored(a_life(), chunks=1)).text
    evicted = judge(*three_lives_of_which_the_second_was_evicted())
    assert evicted.evicted == 16 and {packed >> 32 for packed in evicted.lost.tolist()} == {3}


def written_log(folder: Path, chunks: list[Chunk], order: Iterable[int]) -> Path:
    """A log of chunks of one stream, in this order."""
    folder.mkdir()
    background = Background()
    log = SegmentLog(folder, SPEC, 100, Scan(), background)
    for key, sequence in enumerate(order):
        parts = pack_chunk(SPEC, chunks[sequence])
        log.append(key, "actor-0", 1, Insert(sequence, 0, chunks[sequence].length, crc32(parts)), parts)
    log.close()
    background.close()
    return folder


def test_a_log_is_read_item_by_item_and_what_is_wrong_in_it_shows(tmp_path: Path) -> None:
    chunks = CountingStream(SPEC, 3).chunks(10)
    folder = written_log(tmp_path / "sound", chunks, range(10))
    stored = read_log(folder, SPEC)
    assert len(set(stored.ids)) == len(stored.ids) and not stored.torn and len(stored.lives) == 10
    twice = read_log(written_log(tmp_path / "twice", chunks, [*range(10), 4]), SPEC)
    assert len(twice.ids) - len(set(twice.ids)) == twice.chunks.count(4) > 0
    entry = scan(folder, SPEC).entries[6]
    content = bytearray(entry.path.read_bytes())
    content[entry.offset + 10] ^= 4
    entry.path.write_bytes(content)
    stored = read_log(folder, SPEC)
    assert stored.torn == ["chunk 6: checksum differs"] and 6 not in stored.lives
    chunks[0].columns["observation"][2, 5] += 1  # what was handed over was wrong already: the checksum fits
    stored = read_log(written_log(tmp_path / "false", chunks, [0]), SPEC)
    assert stored.torn and "item 2: not an observation" in stored.torn[-1]


@pytest.mark.parametrize("cut", [1, 9, 20])
def test_a_history_that_was_torn_by_a_kill_is_read_up_to_there(tmp_path: Path, cut: int) -> None:
    recorder = Recorder(tmp_path, "actor-0", 5)
    recorder.step(1, 2, 3)
    recorder.insert(0, np.array([pack_id(1, 2, 3)]))
    recorder.acknowledged(1)
    recorder.close()
    data = recorder.path.read_bytes()
    recorder.path.write_bytes(data[:-cut])
    life = read_life(recorder.path)
    assert (life.name, life.incarnation, life.steps, life.acknowledged) == ("actor-0", 5, [pack_id(1, 2, 3)], 0) and life.torn
    assert list(life.inserts) == ([0] if cut < 17 else [])
    recorder.path.write_bytes(data[:5])
    assert read_histories(tmp_path) == []


def test_what_a_writer_does_is_written_down_and_fits_what_replay_holds(tmp_path: Path) -> None:
    (tmp_path / "histories").mkdir()
    with recording(tmp_path / "histories"), Link(tmp_path, SPEC, counting_replay()) as link:
        link.serve(folder=tmp_path / "log")
        writer = link.writer()
        stream = CountingStream(SPEC, 3)
        link.until(lambda: writer.has_credit, writer)
        chunks = stream.chunks(5)
        for chunk in chunks:
            writer.insert(chunk)
        link.until(lambda: not writer.outstanding, writer)
    lives = read_histories(tmp_path / "histories")
    verdict = judge(lives, read_log(tmp_path / "log", SPEC))
    steps = [int(chunk.columns["valid"][:8].sum()) for chunk in chunks]
    assert verdict.sound and len(verdict.acknowledged) == len(verdict.stored) == sum(steps) and lives[0].acknowledged == 5
    os.truncate(segments(tmp_path / "log")[-1], segments(tmp_path / "log")[-1].stat().st_size - 1)
    assert judge(lives, read_log(tmp_path / "log", SPEC)).figures["lost"] == steps[-1]
