"""The checker of the rehearsals finds each fault that is planted, and nothing where nothing is."""

from __future__ import annotations

import os
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


def test_a_sound_history_is_found_sound_and_what_was_stored_without_a_word_is_recovered() -> None:
    verdict = judge([a_life()], what_was_stored(a_life()))
    assert verdict.sound and len(verdict.recovered) == 4 and len(verdict.acknowledged) == 8 and len(verdict.attempted) == 14
    assert verdict.text == "14 steps by 1 incarnations, 8 acknowledged, 12 stored (4 recovered)"


def test_what_was_never_acknowledged_may_be_missing() -> None:
    assert judge([a_life()], what_was_stored(a_life(), chunks=2)).sound


def test_an_acknowledged_chunk_that_is_missing_is_lost() -> None:
    verdict = judge([a_life()], what_was_stored(a_life(), chunks=1))
    assert verdict.figures == {"lost": 4, "unexpected": 0, "doubled": 0, "torn": 0, "mixed": 0} and not verdict.sound
    assert "lost: stream 7 episode 0 step 4" in verdict.text


def test_one_acknowledged_item_that_is_missing_is_lost() -> None:
    stored = what_was_stored(a_life())
    del stored.ids[2], stored.chunks[2]
    assert judge([a_life()], stored).figures["lost"] == 1


def test_a_step_that_no_actor_attempted_is_unexpected() -> None:
    stored = what_was_stored(a_life())
    stored.ids.append(pack_id(7, 5, 0))
    stored.chunks.append(2)
    assert judge([a_life()], stored).figures["unexpected"] == 1


def test_what_is_stored_under_two_keys_is_doubled() -> None:
    stored = what_was_stored(a_life(), a_life())
    assert judge([a_life()], stored).figures == {"lost": 0, "unexpected": 0, "doubled": 12, "torn": 0, "mixed": 0}


def test_a_stream_with_steps_of_two_lives_is_mixed() -> None:
    first, second = a_life(), a_life(incarnation=2, began=1.0)
    second.steps = [packed + 100 for packed in second.steps]
    second.inserts = {sequence: ids + 100 for sequence, ids in second.inserts.items()}
    verdict = judge([first, second], what_was_stored(first, second))
    assert verdict.figures["mixed"] > 0 and verdict.figures["lost"] == verdict.figures["doubled"] == 0


def test_an_item_that_is_stored_as_another_lifes_is_mixed() -> None:
    first, second = a_life(), a_life(name="actor-1", incarnation=2, identity=8)
    stored = what_was_stored(first, second)
    stored.lives[2] = "actor-1", 2
    assert judge([first, second], stored).figures["mixed"] == 4 + 4  # each of them shows twice: the stream has two owners


def test_what_was_evicted_is_not_lost_but_what_should_still_be_there_is() -> None:
    life, stored = a_life(), Stored(evicted={"actor-0": (1, 1)})
    verdict = judge([life], stored)
    assert verdict.evicted == 4 and verdict.figures["lost"] == 4


def test_of_an_earlier_life_all_may_be_evicted_but_not_of_a_later_one() -> None:
    earlier, kept, later = (a_life(incarnation=n, identity=n, began=float(n)) for n in (1, 2, 3))
    stored = Stored(evicted={"actor-0": (2, 3)})
    verdict = judge([earlier, kept, later], stored)
    assert verdict.evicted == 16 and verdict.figures["lost"] == 8 and {packed >> 32 for packed in verdict.lost.tolist()} == {3}


def test_of_an_actor_that_the_oldest_segment_does_not_know_nothing_is_evicted() -> None:
    stored = Stored(evicted={"actor-1": (9, 9)})
    assert judge([a_life()], stored).figures["lost"] == 8


def test_a_life_that_recorded_no_steps_attempted_what_it_handed_over() -> None:
    life = replace(a_life(), steps=[])
    assert judge([life], what_was_stored(a_life())).sound


def written_log(folder: Path, twice: int | None = None) -> Path:
    """A log of ten chunks of one stream, the chunk `twice` written down a second time."""
    folder.mkdir()
    background = Background()
    log = SegmentLog(folder, SPEC, 100, Scan(), background)
    chunks = CountingStream(SPEC, 3).chunks(10)
    order = [*range(10)] if twice is None else [*range(10), twice]
    for key, sequence in enumerate(order):
        parts = pack_chunk(SPEC, chunks[sequence])
        log.append(key, "actor-0", 1, Insert(sequence, 0, chunks[sequence].length, crc32(parts)), parts)
    log.close()
    background.close()
    return folder


def test_a_sound_log_is_read_item_by_item(tmp_path: Path) -> None:
    stored = read_log(written_log(tmp_path / "log"), SPEC)
    assert len(set(stored.ids)) == len(stored.ids) and not stored.torn and len(stored.lives) == 10


def test_a_chunk_that_is_in_the_log_twice_shows(tmp_path: Path) -> None:
    stored = read_log(written_log(tmp_path / "log", twice=4), SPEC)
    assert len(stored.ids) - len(set(stored.ids)) == stored.chunks.count(4) > 0


def test_a_bit_that_is_wrong_on_the_disk_is_torn(tmp_path: Path) -> None:
    folder = written_log(tmp_path / "log")
    entry = scan(folder, SPEC).entries[6]
    with open(entry.path, "r+b") as file:
        file.seek(entry.offset + 10)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
    stored = read_log(folder, SPEC)
    assert stored.torn == ["chunk 6: checksum differs"] and 6 not in stored.lives


def test_an_observation_that_no_simulator_showed_is_torn(tmp_path: Path) -> None:
    """The checksum of the wire fits: what was handed over was wrong already."""
    folder = tmp_path / "log"
    folder.mkdir()
    background = Background()
    log = SegmentLog(folder, SPEC, 100, Scan(), background)
    chunk = CountingStream(SPEC, 3).chunks(1)[0]
    chunk.columns["observation"][2, 5] += 1
    parts = pack_chunk(SPEC, chunk)
    log.append(0, "actor-0", 1, Insert(0, 0, chunk.length, crc32(parts)), parts)
    log.close()
    background.close()
    stored = read_log(folder, SPEC)
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
