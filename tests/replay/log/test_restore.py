"""A table and its journal: what is restored equals what was there."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from replay.config import ReplayConfig
from replay.log import segment_log
from replay.log.journal import STATE_FILE, Journal, RestoreStopped
from replay.log.segments import segments
from replay.table.layout import PRIORITY
from replay.table.ring import Ring
from tests.harness.waiting import wait_until
from tests.replay.examples import Logged, draw, every_item, make_spec, stream_chunks
from tests.transport.columns import scalars
from transport.experience import ExperienceSpec

SPEC = make_spec(length=4, stack=2, n_step=2)
SENDING = make_spec(length=4, stack=2, n_step=2, extras=scalars(PRIORITY))
CONFIG = ReplayConfig(capacity=80, min_size=1, samples_per_insert_low=1.0, samples_per_insert_high=2.0)


class Incarnation(Logged):
    """One start of replay, and the stream of one actor."""

    def __init__(self, folder: Path, config: ReplayConfig = CONFIG, spec: ExperienceSpec = SPEC) -> None:
        super().__init__(folder, spec, config)
        self.ring.check_invariants()
        self.chunks = stream_chunks(spec, {5: "truncated", 11: "terminated", 40: "truncated"}, 200)
        self.generator = np.random.default_rng(1)

    def insert(self, first: int, last: int) -> None:
        for sequence in range(first, last):
            self.append(self.chunks[sequence], sequence)
        self.ring.check_invariants()

    def learn(self) -> None:
        """New priorities for most items."""
        for _ in range(20):
            self.ring.update_priorities(draw(self.ring, 8)["key"], self.generator.random(8) * 5)

    def priorities(self) -> dict[int, float]:
        """By key of every item: its exact value in the tree."""
        values = self.values()
        return {4 * key + offset: value for key, row in values.items() for offset, value in enumerate(row) if value > 0}

    def initial_priorities(self, keys: Iterable[int]) -> dict[int, float]:
        """The initial priorities of items by key, raised."""
        length, history = self.spec.chunk_length, self.spec.history
        sent = {key: self.chunks[key // length].columns[PRIORITY][history + key % length] for key in keys}
        return {key: float(np.float64(priority) ** CONFIG.priority_exponent) for key, priority in sent.items()}


def learned(folder: Path, chunks: int = 12, spec: ExperienceSpec = SPEC) -> Incarnation:
    """A start that inserted some chunks, learned from them, and was stopped."""
    first = Incarnation(folder, spec=spec)
    first.insert(0, chunks)
    first.learn()
    first.stop(duplicates=3.0)
    return first


@pytest.mark.parametrize("spec", [SPEC, SENDING], ids=["highest-first", "initial-priorities"])
def test_after_an_orderly_stop_the_table_is_the_same_to_the_last_bit(tmp_path: Path, spec: ExperienceSpec) -> None:
    first = learned(tmp_path, 33, spec)  # the ring of 20 chunks has turned over
    second = Incarnation(tmp_path, spec=spec)
    assert second.priorities() == first.priorities()
    for name in ("size", "next_key", "oldest_key", "inserted_items", "sampled_items"):
        assert getattr(second.ring, name) == getattr(first.ring, name), name
    assert second.journal.counters["duplicates"] == 3
    # The same draws from the same rows with the same probabilities, the random generator continues …
    second.ring.limiter = first.ring.limiter
    for _ in range(5):
        before, after = draw(first.ring, 16), draw(second.ring, 16)
        assert all(np.array_equal(before[name], after[name]) for name in before)
    # … and new chunks take the same places.
    second.insert(33, 40)
    assert max(second.priorities()) // SPEC.chunk_length == 39
    second.stop()


def test_what_a_full_disk_did_not_take_is_said_at_the_stop_and_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(segment_log, "RETRY_SECONDS", 0.0)

    def full(*_given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def without_room(chunks: int, stops: bool = False, killed: bool = False) -> tuple[Incarnation, str]:
        """A start on a disk on which files can be made that take no byte, and the note of the start before."""
        capsys.readouterr()
        made = Incarnation(tmp_path)
        said = capsys.readouterr().out
        with monkeypatch.context() as patch:
            patch.setattr(segment_log, "pack_record", full)
            patch.setattr(os, "fsync", full)
            made.insert(0, chunks)
            if killed:  # or its writer would remove files while the next start reads them
                made.journal._background.close()
            return made, made.stop() if stops else said

    lost = "16 steps of experience could not be written to the disk and are lost; priorities and counters"
    assert without_room(4, stops=True)[1].startswith(lost)
    second, said = without_room(1, killed=True)
    assert second.ring.size == 4 and "the disk was full before this start: 16 steps of experience were in memory only" in said
    third, said = without_room(4)
    assert "the disk was full before this start: some steps" in said
    third.insert(4, 30)  # what was in memory only is evicted
    assert third.stop() == ""
    assert "disk was full" not in without_room(0)[1]


def test_short_chunks_of_slow_simulators_are_restored_with_their_priorities(tmp_path: Path) -> None:
    first = Incarnation(tmp_path)
    first.chunks = [stream_chunks(SPEC, {}, length)[0] for length in np.random.default_rng(0).integers(1, 5, 150).tolist()]
    first.insert(0, 150)
    first.learn()
    first.stop()
    second = Incarnation(tmp_path)
    assert second.priorities() == first.priorities()
    before, after = every_item(first.ring), every_item(second.ring)
    assert all(np.array_equal(before[name], after[name]) for name in before) and first.ring.size > 76
    second.stop()


@pytest.mark.parametrize("spec", [SPEC, SENDING], ids=["highest-first", "initial-priorities"])
def test_after_a_kill_what_is_newer_than_the_state_has_its_first_priority(tmp_path: Path, spec: ExperienceSpec) -> None:
    first = learned(tmp_path, 12, spec)
    saved = first.priorities()
    second = Incarnation(tmp_path, spec=spec)
    second.insert(12, 16)
    second.learn()  # these are lost: the state is saved from time to time only
    third = Incarnation(tmp_path, spec=spec)  # without a stop
    assert third.ring.inserted_items == second.ring.inserted_items > first.ring.inserted_items
    assert third.journal.counters["inserted_chunks"] == 4
    found = third.priorities()
    assert found.keys() == second.priorities().keys() > saved.keys() and found.items() >= saved.items()  # to the last bit
    highest = max(1.0, first.ring.state().selector.numbers["highest"])
    expected = first.initial_priorities(found) if spec is SENDING else dict.fromkeys(found, highest)
    assert found == pytest.approx(expected | saved)
    if spec is SENDING:  # what is inserted next without a priority of its own comes with the highest of all that there was
        third.chunks[16].columns[PRIORITY][:] = np.nan
        third.insert(16, 17)
        assert {value for key, value in third.priorities().items() if key // 4 == 16} == {max(highest, *found.values())}
    third.stop()
    second.stop()


@pytest.mark.parametrize("saved", [0, 6])
def test_after_a_kill_chunks_that_were_evicted_since_the_last_save_are_counted(tmp_path: Path, saved: int) -> None:
    config = replace(CONFIG, capacity=20)  # five chunks, which a fast run replaces between two saves
    first = Incarnation(tmp_path, config)
    first.insert(0, saved)
    first.stop()
    if not saved:
        (tmp_path / STATE_FILE).unlink()
    second = Incarnation(tmp_path, config)
    second.insert(saved, 45)
    second.kill()
    third = Incarnation(tmp_path, config)
    assert third.ring.inserted_items == pytest.approx(second.ring.inserted_items, rel=0.1) and third.ring.size <= 20
    assert third.journal.counters["inserted_chunks"] == 45 - saved
    third.stop()


@pytest.mark.parametrize("spec", [SPEC, SENDING], ids=["highest-first", "initial-priorities"])
@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "missing"])
def test_without_a_valid_state_all_items_are_restored_with_their_first_priority(
    tmp_path: Path, harm: str, spec: ExperienceSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    first = learned(tmp_path, spec=spec)
    path = tmp_path / STATE_FILE
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    changed = {"flip": bytes(data), "cut": bytes(data[: len(data) // 2]), "empty": b""}
    path.unlink() if harm == "missing" else path.write_bytes(changed[harm])
    second = Incarnation(tmp_path, spec=spec)
    found = first.priorities()
    assert second.priorities() == (
        pytest.approx(first.initial_priorities(found)) if spec is SENDING else dict.fromkeys(found, 1.0)
    )
    assert ("is damaged" in capsys.readouterr().out) == (harm != "missing")
    second.stop()


def test_a_smaller_capacity_keeps_the_newest_and_a_larger_one_everything(tmp_path: Path) -> None:
    before = learned(tmp_path, 33).priorities()
    wide = Incarnation(tmp_path, replace(CONFIG, capacity=400))
    kept = wide.priorities()
    assert kept.items() >= before.items() and len(kept) == wide.ring.size  # the log may hold a little more than the ring did
    small = Incarnation(tmp_path, replace(CONFIG, capacity=24))
    assert small.priorities() == {key: value for key, value in before.items() if key >= 27 * 4}
    small.insert(33, 50)
    assert small.ring.size <= 24
    small.stop()
    wide.stop()


def test_the_log_remembers_the_sequences_of_evicted_chunks(tmp_path: Path) -> None:
    first = Incarnation(tmp_path, replace(CONFIG, capacity=4))
    first.insert(0, 30)
    first.stop()  # two journals at once would delete each other's segments
    second = Incarnation(tmp_path, replace(CONFIG, capacity=4))
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
    lost = {key // 4 for key in first.priorities()} - {key // 4 for key in second.priorities()}
    assert len(lost) == 1 and second.ring.next_key == 10
    assert "(0 torn, 1 damaged)" in capsys.readouterr().out
    second.insert(10, 40)
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
    assert second.ring.next_key == 33 and 0 < second.ring.size < first.ring.size
    missing = second.journal.figures()["missing_chunks"]
    assert 0 < missing == 32 - max(second.priorities()) // SPEC.chunk_length
    assert f"{missing:.0f} missing at the end" in capsys.readouterr().out
    second.insert(33, 35)
    second.stop()


@pytest.mark.parametrize("change", [{"selector": "uniform"}, {"priority_exponent": 0.3}, {"priority_exponent": 0.0}])
def test_a_run_can_be_resumed_with_another_selector(tmp_path: Path, change: dict[str, object]) -> None:
    before = learned(tmp_path).priorities()
    second = Incarnation(tmp_path, replace(CONFIG, **change))
    halved = change == {"priority_exponent": 0.3}
    assert second.priorities() == pytest.approx({key: value**0.5 if halved else 1.0 for key, value in before.items()})
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
    asked: list[bool] = []

    def interrupted() -> bool:
        asked.append(True)
        return len(asked) >= 5

    with pytest.raises(RestoreStopped):
        Journal(tmp_path, Ring(SPEC, CONFIG, seed=0), CONFIG, interrupted)
    assert len(asked) == 5
    whole = Incarnation(tmp_path)
    assert whole.priorities() == first.priorities(), "an interrupted restore changes nothing on disk"
    whole.stop()
