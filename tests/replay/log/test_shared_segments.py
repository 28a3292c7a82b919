"""Experience that a fork takes along: what the other run had, whatever that one does meanwhile and afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from replay.config import ReplayConfig
from replay.log import shared_segments
from replay.log.check import check_logs
from replay.log.journal import STATE_FILE
from replay.log.segments import segments
from replay.log.shard_folders import note, shard_folder
from replay.log.shared_segments import SharedSegments, share_segments
from replay.shards import Shard
from tests.harness.waiting import wait_until
from tests.replay.examples import every_item, stream_chunks
from tests.replay.log.test_restore import SPEC, Incarnation
from transport.experience import ExperienceSpec

ALL = ReplayConfig(capacity=800, min_size=1, samples_per_insert_low=1.0, samples_per_insert_high=2.0)
LENGTH = SPEC.chunk_length


def forked(base: Path, target: Path, up: bool = False, steps: float | None = None, spec: ExperienceSpec = SPEC) -> SharedSegments:
    return share_segments(base, target, spec, up, steps, lambda line: None)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def items(run: Incarnation) -> dict[str, bytes]:
    """Every column of all items."""
    return {name: values.tobytes() for name, values in every_item(run.ring).items()}


def test_a_fork_of_a_log_that_grows_restores_what_was_there_and_neither_changes_the_other(tmp_path: Path) -> None:
    run = Incarnation(tmp_path / "a")
    run.insert(0, 40)  # of which the ring holds 20 chunks
    run.learn()
    run.stop()
    run = Incarnation(tmp_path / "a")
    run.insert(40, 43)
    there, priorities, inserted = items(run), run.priorities(), run.ring.inserted_items
    made = forked(tmp_path / "a", tmp_path / "b", up=True)
    assert made.steps == inserted and made.shared_bytes > 0 and made.copied_bytes > 0
    newest = segments(tmp_path / "a")[-1]
    size = newest.stat().st_size
    run.insert(43, 48)
    assert newest.stat().st_size > size, "the other run goes on in the same file"
    assert not list(check_logs(tmp_path / "b", SPEC))
    before = contents(tmp_path / "a")
    other = Incarnation(tmp_path / "b")
    assert items(other) == there and other.ring.inserted_items == inserted
    assert other.priorities() == pytest.approx(priorities)
    other.insert(43, 50)
    other.stop()
    assert contents(tmp_path / "a") == before
    run.stop()


def test_a_fork_from_an_earlier_step_has_what_had_been_inserted_by_then(tmp_path: Path) -> None:
    run = Incarnation(tmp_path / "a", ALL)
    run.insert(0, 20)
    earlier, inserted, end = items(run), run.ring.inserted_items, run.ring.next_key
    run.insert(20, 45)
    run.learn()
    run.stop()
    before = contents(tmp_path / "a")
    made = forked(tmp_path / "a", tmp_path / "b", steps=inserted)
    assert made.steps == inserted and made.rows == 20 * LENGTH
    assert not list(check_logs(tmp_path / "b", SPEC))
    other = Incarnation(tmp_path / "b", ALL)
    assert items(other) == earlier and (other.ring.inserted_items, other.ring.next_key) == (inserted, end)
    known = run.priorities()
    assert other.priorities() == pytest.approx({key: known[key] for key in other.priorities()}), "those of now"
    other.insert(20, 30)
    other.stop()
    assert not list(check_logs(tmp_path / "b", SPEC)) and contents(tmp_path / "a") == before


def test_a_step_of_which_the_log_has_nothing_any_more_is_counted_from(tmp_path: Path) -> None:
    run = Incarnation(tmp_path / "a")
    run.insert(0, 45)
    run.stop()
    assert forked(tmp_path / "a", tmp_path / "b", steps=12) == SharedSegments(steps=12)
    other = Incarnation(tmp_path / "b")
    assert (other.ring.size, other.ring.inserted_items) == (0, 12)
    other.insert(0, 3)
    other.stop()
    assert not list(check_logs(tmp_path / "b", SPEC))


def test_segments_that_are_deleted_meanwhile_leave_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Incarnation(tmp_path / "a", replace(ALL, capacity=240))
    run.chunks = stream_chunks(SPEC, {}, 130 * LENGTH)
    run.insert(0, 45)  # three segments
    link = shared_segments.link_or_copy

    def while_it_evicts(source: Path, target: Path) -> bool:
        found = link(source, target)
        if source.suffix == ".segment":
            run.insert(45, 130)
            run.journal.turn(dict)
            wait_until(lambda: segments(tmp_path / "a")[0].stem > "0000000000000032", what="older segments deleted")
        return found

    monkeypatch.setattr(shared_segments, "link_or_copy", while_it_evicts)
    forked(tmp_path / "a", tmp_path / "b", up=True)
    assert [path.stem for path in segments(tmp_path / "b")] == ["0000000000000016", "0000000000000032"]
    assert not list(check_logs(tmp_path / "b", SPEC))
    run.stop()


def test_each_shard_has_its_part_of_an_earlier_step(tmp_path: Path) -> None:
    note(tmp_path / "a", 2)
    for index, chunks in enumerate((30, 10)):
        shard = Incarnation(shard_folder(tmp_path / "a", Shard(index, 2)), ALL)
        shard.insert(0, chunks)
        shard.stop()
    whole = forked(tmp_path / "a", tmp_path / "whole")
    half = forked(tmp_path / "a", tmp_path / "half", steps=whole.steps / 2)
    assert half.steps == pytest.approx(whole.steps / 2, abs=2) and half.rows == pytest.approx(20 * LENGTH, abs=2 * LENGTH)
    assert not list(check_logs(tmp_path / "half", SPEC)) and not list(check_logs(tmp_path / "whole", SPEC))


def test_without_hard_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Incarnation(tmp_path / "a")
    run.insert(0, 30)
    run.stop()
    monkeypatch.setattr(os, "link", lambda *names: (_ for _ in ()).throw(PermissionError(1, "not permitted")))
    made = forked(tmp_path / "a", tmp_path / "b")
    assert made.shared_bytes == 0 and made.copied_bytes > 0
    taken = {name: data for name, data in contents(tmp_path / "a").items() if not name.startswith(".")}
    assert contents(tmp_path / "b") == taken and STATE_FILE in taken


def test_a_run_without_a_log_gives_nothing(tmp_path: Path) -> None:
    assert forked(tmp_path / "a", tmp_path / "b") == SharedSegments()
