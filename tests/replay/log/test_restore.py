"""A table and its journal: what is restored equals what was there."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from replay.config import ReplayConfig
from replay.log import segment_log
from replay.log.journal import STATE_FILE, Journal, RestoreStopped
from replay.log.segments import segments
from replay.table.layout import PRIORITY, layout
from replay.table.ring import Ring
from tests.harness.waiting import wait_until
from tests.replay.examples import every_item, make_spec, stream_chunks
from tests.transport.columns import scalars
from transport.compression import crc32, pack_chunk
from transport.experience import ExperienceSpec
from transport.messages.replay import Insert

SPEC = make_spec(length=4, stack=2, n_step=2)
SENDING = make_spec(length=4, stack=2, n_step=2, extras=scalars(PRIORITY))
CONFIG = ReplayConfig(capacity=80, min_size=1, samples_per_insert_low=1.0, samples_per_insert_high=2.0)


class Incarnation:
    """A ring with its journal, from one start to the next."""

    def __init__(self, folder: Path, config: ReplayConfig = CONFIG, spec: ExperienceSpec = SPEC) -> None:
        self.spec = spec
        self.chunks = stream_chunks(spec, {5: "truncated", 11: "terminated", 40: "truncated"}, 200)
        self.ring = Ring(spec, config, seed=0)
        self.journal = Journal(folder, self.ring, config, lambda: False)
        self.generator = np.random.default_rng(1)

    def insert(self, first: int, last: int) -> None:
        for sequence in range(first, last):
            chunk = self.chunks[sequence]
            parts = pack_chunk(self.spec, chunk)
            message = Insert(sequence, 0, chunk.length, crc32(parts))
            self.journal.append("actor-0", 7, message, parts)
            self.ring.insert(chunk)

    def draw(self, count: int) -> dict[str, np.ndarray]:
        arrangement = layout(self.spec, count)
        out = arrangement.view(np.zeros(arrangement.slot_bytes, np.uint8))
        self.ring.sample(out)
        return out

    def learn(self) -> None:
        """New priorities for most items."""
        for _ in range(20):
            batch = self.draw(8)
            self.ring.update_priorities(batch["key"], self.generator.random(8) * 5)

    def stop(self) -> str:
        return self.journal.close(lambda: {"duplicates": 3.0})

    def priorities(self) -> dict[int, float]:
        """By key of every item: its exact value in the tree."""
        state = self.ring.state()
        values = state.selector.values.reshape(len(state.chunk_keys), SPEC.chunk_length)
        return {
            int(key) * SPEC.chunk_length + offset: float(values[slot, offset])
            for slot, key in enumerate(state.chunk_keys)
            for offset in range(SPEC.chunk_length)
            if key >= 0 and values[slot, offset] > 0
        }

    def initial_priorities(self, keys: Iterable[int]) -> dict[int, float]:
        """The initial priorities of items by key, raised."""
        length, history = self.spec.chunk_length, self.spec.history
        sent = {key: self.chunks[key // length].columns[PRIORITY][history + key % length] for key in keys}
        return {key: float(np.float64(priority) ** CONFIG.priority_exponent) for key, priority in sent.items()}


@pytest.mark.parametrize("spec", [SPEC, SENDING], ids=["highest-first", "initial-priorities"])
def test_after_an_orderly_stop_the_table_is_the_same_to_the_last_bit(tmp_path: Path, spec: ExperienceSpec) -> None:
    first = Incarnation(tmp_path, spec=spec)
    first.insert(0, 33)  # the ring of 20 chunks has turned over
    first.learn()
    first.stop()
    second = Incarnation(tmp_path, spec=spec)
    second.ring.check_invariants()
    assert second.priorities() == first.priorities()
    for name in ("size", "next_key", "oldest_key", "inserted_items", "sampled_items"):
        assert getattr(second.ring, name) == getattr(first.ring, name), name
    assert second.journal.counters["duplicates"] == 3
    # The same draws from the same rows with the same probabilities, the random generator continues …
    second.ring.limiter = first.ring.limiter
    for _ in range(5):
        before, after = first.draw(16), second.draw(16)
        assert all(np.array_equal(before[name], after[name]) for name in before)
    # … and new chunks take the same places.
    second.insert(33, 40)
    second.ring.check_invariants()
    assert max(second.priorities()) // SPEC.chunk_length == 39
    second.stop()


def test_what_a_full_disk_did_not_take_is_said_at_the_stop_and_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(segment_log, "RETRY_SECONDS", 0.0)
    first = Incarnation(tmp_path)
    with monkeypatch.context() as full:
        no_room(full)
        first.insert(0, 4)
        unsaved = first.stop()
    assert unsaved.startswith("16 steps of experience could not be written to the disk and are lost; priorities and counters")
    capsys.readouterr()
    second = Incarnation(tmp_path)
    assert second.ring.size == 0
    assert "the disk was full before this start: 16 steps of experience were in memory only" in capsys.readouterr().out
    with monkeypatch.context() as full:
        no_room(full)
        second.insert(0, 1)  # and is killed
    capsys.readouterr()
    third = Incarnation(tmp_path)
    assert "the disk was full before this start: some steps" in capsys.readouterr().out
    with monkeypatch.context() as full:
        no_room(full)
        third.insert(0, 4)
    third.insert(4, 30)  # what was in memory only is evicted
    assert third.stop() == ""
    capsys.readouterr()
    Incarnation(tmp_path)
    assert "disk was full" not in capsys.readouterr().out


def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files can be made, and take no byte."""

    def full(*_given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(segment_log, "pack_record", full)
    monkeypatch.setattr(os, "fsync", full)


def test_short_chunks_of_slow_simulators_are_restored_with_their_priorities(tmp_path: Path) -> None:
    first = Incarnation(tmp_path)
    first.chunks = [stream_chunks(SPEC, {}, length)[0] for length in np.random.default_rng(0).integers(1, 5, 150).tolist()]
    first.insert(0, 150)
    first.learn()
    first.stop()
    second = Incarnation(tmp_path)
    second.ring.check_invariants()
    assert second.priorities() == first.priorities()
    before, after = every_item(first.ring), every_item(second.ring)
    assert all(np.array_equal(before[name], after[name]) for name in before) and first.ring.size > 76
    second.stop()


def test_after_a_kill_chunks_newer_than_the_state_have_the_highest_priority(tmp_path: Path) -> None:
    first = Incarnation(tmp_path)
    first.insert(0, 12)
    first.learn()
    first.stop()
    saved, counted = first.priorities(), first.ring.inserted_items
    second = Incarnation(tmp_path)
    second.insert(12, 16)
    second.learn()  # these are lost: the state is saved from time to time only
    third = Incarnation(tmp_path)  # without a stop
    third.ring.check_invariants()
    assert third.ring.inserted_items == second.ring.inserted_items > counted
    assert third.journal.counters["inserted_chunks"] == 4
    found = third.priorities()
    assert found.keys() == second.priorities().keys()
    highest = max(1.0, first.ring.state().selector.numbers["highest"])
    assert all(value == saved.get(key, highest) for key, value in found.items())
    third.stop()
    second.stop()


@pytest.mark.parametrize("saved", [0, 6])
def test_after_a_kill_chunks_that_were_evicted_since_the_last_save_are_counted(tmp_path: Path, saved: int) -> None:
    config = msgspec.structs.replace(CONFIG, capacity=20)  # five chunks, which a fast run replaces between two saves
    first = Incarnation(tmp_path, config)
    first.insert(0, saved)
    first.stop()
    if not saved:
        (tmp_path / STATE_FILE).unlink()
    second = Incarnation(tmp_path, config)
    second.insert(saved, 45)
    second.journal.log.close()
    second.journal._background.close()  # killed: no state is saved
    third = Incarnation(tmp_path, config)
    assert third.ring.inserted_items == pytest.approx(second.ring.inserted_items, rel=0.1) and third.ring.size <= 20
    assert third.journal.counters["inserted_chunks"] == 45 - saved
    third.stop()


def test_after_a_kill_items_newer_than_the_state_have_their_initial_priority(tmp_path: Path) -> None:
    first = Incarnation(tmp_path, spec=SENDING)
    first.insert(0, 12)
    assert first.priorities() == pytest.approx(first.initial_priorities(first.priorities()))
    first.learn()
    first.stop()
    saved = first.priorities()
    second = Incarnation(tmp_path, spec=SENDING)
    second.insert(12, 16)
    second.learn()  # these are lost: the state is saved from time to time only
    third = Incarnation(tmp_path, spec=SENDING)  # without a stop
    third.ring.check_invariants()
    found = third.priorities()
    assert found.keys() == second.priorities().keys() > saved.keys()
    assert found == pytest.approx(first.initial_priorities(found) | saved)
    assert found.items() >= saved.items()  # these to the last bit
    # What is inserted next without a priority of its own comes with the highest of all that there was.
    third.chunks[16].columns[PRIORITY][:] = np.nan
    third.insert(16, 17)
    highest = max(first.ring.state().selector.numbers["highest"], *found.values())
    assert {value for key, value in third.priorities().items() if key // 4 == 16} == {highest}
    third.stop()
    second.stop()


def test_without_a_state_items_have_their_initial_priority(tmp_path: Path) -> None:
    first = Incarnation(tmp_path, spec=SENDING)
    first.insert(0, 12)
    first.learn()
    first.stop()
    (tmp_path / STATE_FILE).unlink()
    second = Incarnation(tmp_path, spec=SENDING)
    assert second.priorities() == pytest.approx(first.initial_priorities(first.priorities()))
    second.stop()


def test_a_smaller_capacity_keeps_the_newest_and_a_larger_one_everything(tmp_path: Path) -> None:
    first = Incarnation(tmp_path)
    first.insert(0, 33)
    first.learn()
    first.stop()
    before = first.priorities()
    wide = Incarnation(tmp_path, msgspec.structs.replace(CONFIG, capacity=400))
    wide.ring.check_invariants()
    kept = wide.priorities()
    assert kept.items() >= before.items() and len(kept) == wide.ring.size  # the log may hold a little more than the ring did
    small = Incarnation(tmp_path, msgspec.structs.replace(CONFIG, capacity=24))
    small.ring.check_invariants()
    assert small.priorities() == {key: value for key, value in before.items() if key >= 27 * 4}
    small.insert(33, 50)
    small.ring.check_invariants()
    assert small.ring.size <= 24
    small.stop()
    wide.stop()


def test_the_log_remembers_the_sequences_of_evicted_chunks(tmp_path: Path) -> None:
    first = Incarnation(tmp_path, msgspec.structs.replace(CONFIG, capacity=4))
    first.insert(0, 30)
    first.stop()  # two journals at once would delete each other's segments
    second = Incarnation(tmp_path, msgspec.structs.replace(CONFIG, capacity=4))
    assert second.journal.next_sequence("actor-0", 7) == 30
    assert second.journal.next_sequence("actor-0", 8) == 0 == second.journal.next_sequence("actor-1", 7)
    wait_until(lambda: len(segments(tmp_path)) == 1, 60, "evicted segments deleted")
    second.stop()


def test_a_damaged_chunk_leaves_a_gap_in_the_keys_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = Incarnation(tmp_path)
    first.insert(0, 10)
    first.stop()
    path = segments(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # in the body of its last chunk
    path.write_bytes(data)
    second = Incarnation(tmp_path)
    second.ring.check_invariants()
    lost = {key // 4 for key in first.priorities()} - {key // 4 for key in second.priorities()}
    assert len(lost) == 1 and second.ring.next_key == 10
    assert "(0 torn, 1 damaged)" in capsys.readouterr().out
    second.insert(10, 40)
    second.ring.check_invariants()
    second.stop()


def test_keys_are_never_used_twice_even_if_a_power_cut_takes_the_end_of_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Incarnation(tmp_path)
    first.insert(0, 33)
    first.stop()
    for path in segments(tmp_path)[-2:]:
        path.unlink()
    second = Incarnation(tmp_path)
    second.ring.check_invariants()
    assert second.ring.next_key == 33 and 0 < second.ring.size < first.ring.size
    missing = second.journal.figures()["missing_chunks"]
    assert 0 < missing == 32 - max(second.priorities()) // SPEC.chunk_length
    assert f"{missing:.0f} missing at the end" in capsys.readouterr().out
    second.insert(33, 35)
    second.ring.check_invariants()
    second.stop()


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "missing"])
def test_without_a_valid_state_all_items_are_restored_with_the_highest_priority(
    tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Incarnation(tmp_path)
    first.insert(0, 12)
    first.learn()
    first.stop()
    path = tmp_path / STATE_FILE
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    changed = {"flip": bytes(data), "cut": bytes(data[: len(data) // 2]), "empty": b""}
    path.unlink() if harm == "missing" else path.write_bytes(changed[harm])
    second = Incarnation(tmp_path)
    assert second.priorities() == dict.fromkeys(first.priorities(), 1.0)
    assert ("is damaged" in capsys.readouterr().out) == (harm != "missing")
    second.stop()


@pytest.mark.parametrize("change", [{"selector": "uniform"}, {"priority_exponent": 0.3}, {"priority_exponent": 0.0}])
def test_a_run_can_be_resumed_with_another_selector(tmp_path: Path, change: dict[str, object]) -> None:
    first = Incarnation(tmp_path)
    first.insert(0, 12)
    first.learn()
    first.stop()
    second = Incarnation(tmp_path, msgspec.structs.replace(CONFIG, **change))
    second.ring.check_invariants()
    assert second.priorities().keys() == first.priorities().keys()
    if change == {"priority_exponent": 0.3}:
        for key, value in first.priorities().items():
            assert second.priorities()[key] == pytest.approx(value**0.5)
    else:
        assert set(second.priorities().values()) == {1.0}
    second.stop()


def test_the_limiter_starts_again_after_a_restart(tmp_path: Path) -> None:
    first = Incarnation(tmp_path)
    first.ring.limiter.connect_learner()
    first.insert(0, 20)
    assert not first.ring.can_insert(), "the learner is behind"
    first.stop()
    second = Incarnation(tmp_path)
    second.ring.limiter.connect_learner()
    assert second.ring.can_insert() and second.ring.can_sample()
    second.stop()


def test_a_restore_sends_heartbeats_and_stops_on_request(tmp_path: Path) -> None:
    first = Incarnation(tmp_path)
    first.insert(0, 10)
    first.stop()
    beats: list[float] = []

    def interrupted() -> bool:
        beats.append(time.monotonic())
        return len(beats) >= 5

    with pytest.raises(RestoreStopped):
        Journal(tmp_path, Ring(SPEC, CONFIG, seed=0), CONFIG, interrupted)
    assert len(beats) == 5
    whole = Incarnation(tmp_path)
    assert whole.priorities() == first.priorities(), "an interrupted restore changes nothing on disk"
    whole.stop()
