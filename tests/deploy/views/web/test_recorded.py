"""The history of a run as its files tell it: nothing twice, nothing lost, and no more memory for a longer run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.recorded.history import Grid, RunClock, StepTotal
from deploy.recorded.run import EVALUATIONS, RecordedEvaluation, RecordedRun, at_most, learner_figures, thinned
from deploy.reporting.new_lines import NewLines
from deploy.views.web.document import PageFollower
from tests.deploy.views.web.made_up import BEGAN, made_up
from transport.files.writing import rotate
from transport.run_dir import RunDir

SHARED = ("inserted_steps", "inserted_steps_per_second", "items", "capacity")  # of two shards each has half


def read(run: RunDir) -> RecordedRun:
    """The history of a run, after everything has been read."""
    found = RecordedRun(run)
    found.read()
    return found


def lines_of(file: NewLines) -> list[bytes]:
    return [line for block in file.blocks() for line in block]


def test_new_lines_come_once_through_rotations_and_never_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    (tmp_path / "a.jsonl.2").write_bytes(b"one\n")
    (tmp_path / "a.jsonl.1").write_bytes(b"two\n")
    path.write_bytes(b"three\nfo")
    file = NewLines(path)
    assert lines_of(file) == [b"one", b"two", b"three"]
    with path.open("ab") as added:
        added.write(b"ur\nfive\n")
    os.replace(path, tmp_path / "a.jsonl.1")
    path.write_bytes(b"six\n")
    assert lines_of(file) == [b"four", b"five", b"six"]
    assert lines_of(file) == []


def test_rotations_between_two_looks_lose_no_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\n")
    file = NewLines(path)
    assert lines_of(file) == [b"one"]
    with path.open("ab") as added:
        added.write(b"two\n")
    for text in (b"three\n", b"four\n"):
        rotate(path, 2)
        path.write_bytes(text)
    assert lines_of(file) == [b"two", b"three", b"four"]
    rotate(path, 3)
    assert lines_of(file) == [], "nothing has been written since"
    path.write_bytes(b"five\n")
    assert lines_of(file) == [b"five"]


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("seen", ["", "one\n"])
def test_where_the_known_file_was_rotated_away_all_that_is_left_is_new(tmp_path: Path, seen: str, reused: bool) -> None:
    path, kept = tmp_path / "a.jsonl", tmp_path / "kept"
    path.write_bytes(seen.encode())
    os.link(path, kept)
    file = NewLines(path, last_bytes=1000 if seen else None)
    assert lines_of(file) == [line.encode() for line in seen.splitlines()]
    path.write_bytes(b"one\n")
    rotate(path, 1)
    path.write_bytes(b"two\n")
    rotate(path, 1)
    if reused:  # the newest file has the inode of the one that is gone
        kept.write_bytes(b"three\n")
        os.replace(kept, path)
    else:
        path.write_bytes(b"three\n")
    assert lines_of(file) == [b"two", b"three"] and lines_of(file) == []


def test_of_a_long_log_only_the_last_whole_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(b"".join(b"line %04d\n" % number for number in range(1000)))
    assert lines_of(NewLines(path, last_bytes=25)) == [b"line 0998", b"line 0999"]


def test_the_clock_leaves_out_the_time_in_which_a_run_was_stopped() -> None:
    clock = RunClock()
    for time in (1000, 1010, 90_000, 90_010):
        clock.record(time)
    assert [clock.seconds(time) for time in (1000, 1005, 50_000, 90_000, 90_010, 90_012)] == [0, 5, 10, 10, 20, 22]
    assert clock.seconds(100) is None


@pytest.mark.parametrize("until", [6_900, 12_000])
def test_a_clock_that_is_set_back_by_an_hour_moves_nothing_that_was_before(until: int) -> None:
    clock = RunClock()
    for time in (*range(10_000, 10_101, 5), *range(6_500, until + 1, 5)):
        clock.record(time)
    before = [10_000, 10_050, 10_100] if until < 10_000 else []  # else it cannot be told which of two times is meant
    assert [clock.seconds(time) for time in before] == [0, 50, 100][: len(before)]
    assert [clock.seconds(time) for time in (6_500, 6_600, until, until + 12)] == [100, 200, until - 6_400, until - 6_388]
    assert clock.seconds(6_000) is None


def test_a_run_whose_first_records_are_no_longer_kept_has_the_time_before_them(tmp_path: Path) -> None:
    run = made_up(tmp_path / "mine", seconds=1200)
    for path in (run.path / "metrics").iterdir():
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[len(lines) // 2 :]))
    recorded = read(run)
    assert recorded.clock.first == BEGAN and recorded.clock.seconds(BEGAN + 900) == 900
    found = PageFollower(recorded).whole()
    assert found["grid"]["seconds"][-1] == pytest.approx(1200, abs=5) and 600 < found["evaluations"]["seconds"][0] < 620
    assert found["grid"]["figures"]["learner.loss"][:120] == 120 * [None]


def totals(counters: Sequence[tuple[str, float]], current: Sequence[str], restored: bool = False) -> list[float]:
    total, found = StepTotal(), []
    for name, counter in counters:
        total.record(name, counter, restored, current)
        found.append(total.steps)
    return found


def test_steps_go_on_where_replay_counts_from_zero_again() -> None:
    counters = [("replay", 500.0), ("replay", 900.0), ("replay", 100.0), ("replay", 300.0)]
    assert totals(counters, ["replay"]) == [500, 900, 1000, 1200]
    shards = [("replay-0", 500.0), ("replay-1", 600.0), ("replay-0", 100.0), ("replay-1", 700.0)]
    assert totals(shards, ["replay-0", "replay-1"]) == [500, 1100, 1200, 1300], "of one shard alone"


def test_a_shard_that_restored_fewer_steps_after_a_redistribution_does_not_count_from_zero() -> None:
    counters = [("replay-0", 900.0), ("replay-1", 900.0), *((f"replay-{shard}", 360.0) for shard in range(5))]
    total = StepTotal()
    for number, (name, counter) in enumerate(counters):
        total.record(name, counter, number >= 2, [name for name, _ in counters])
    assert total.steps == 1800


@pytest.mark.parametrize("stopped_seconds", [5, 2000])
@pytest.mark.parametrize("restores", [True, False])
def test_the_steps_of_shards_count_once_however_often_the_run_is_resumed(
    tmp_path: Path, stopped_seconds: float, restores: bool
) -> None:
    run = RunDir(tmp_path / "mine")
    run.create()
    recorded, began, steps, launches = RecordedRun(run), BEGAN, 0, 3
    for _ in range(launches):
        for shard in range(4):
            with run.metrics(f"replay-{shard}").open("a") as file:
                for number in range(1, 11):
                    record = {"time": began + 5 * number + shard / 10, "inserted_steps": steps + 100 * number}
                    file.write(json.dumps(record) + "\n")
        began += 55 + stopped_seconds
        steps += 1000 if restores else 0
        recorded.read()
    assert PageFollower(recorded).whole()["grid"]["steps"][-1] == pytest.approx(4 * 1000 * launches, rel=0.05)


def test_bins_hold_means_and_merge_when_they_are_used_up() -> None:
    grid = Grid(4, 5.0)
    grid.add(["a"], [0, 1, 6, 11], np.array([[1.0], [3.0], [math.inf], [math.nan]]))
    assert grid.column("a").tolist()[0] == 2.0 and grid.used == 1
    grid.add(["a"], [35], np.array([[8.0]]))
    assert (grid.width_seconds, grid.merges, grid.used) == (10.0, 1, 4)
    np.testing.assert_array_equal(grid.column("a"), [2.0, np.nan, np.nan, 8.0])
    assert grid.coarser(2).column("a").tolist() == [2.0, 8.0] and grid.used == 4


def test_a_run_is_read_whole_and_then_only_what_is_new(tmp_path: Path) -> None:
    run = made_up(tmp_path / "mine", seconds=600, actors=2)
    recorded = read(run)
    follower = PageFollower(recorded)
    whole = follower.whole()
    grid = whole["grid"]
    assert grid["from"] == 0 and len(grid["steps"]) == 120 and grid["steps"][-1] == pytest.approx(1_800_000)
    assert grid["figures"]["learner.loss"][-1] < grid["figures"]["learner.loss"][0]
    assert sorted(whole["actors"]) == ["actor-0", "actor-1"] and whole["evaluations"]["best"].count(True) > 1
    at = BEGAN + 605
    with run.metrics("replay").open("a") as file:
        file.write(json.dumps({"time": at, "inserted_steps": 1_900_000, "items": 7}) + "\nnot json\n{}\n")
    recorded.read()
    news = follower.news()
    assert (news["grid"]["from"], news["grid"]["steps"][-1]) == (117, 1_900_000) and not {"evaluations", "log"} & news.keys()
    assert not news["actors"], "they have recorded nothing since"
    assert "grid" not in follower.news()


def test_the_same_figures_whether_read_at_once_or_bit_by_bit(tmp_path: Path) -> None:
    whole = made_up(tmp_path / "whole", seconds=400, actors=1)
    bits = made_up(tmp_path / "bits", seconds=400, actors=1)
    texts = {path: path.read_bytes() for path in (bits.path / "metrics").iterdir()}
    recorded, at_once = RecordedRun(bits), RecordedRun(whole)
    for share in (0.31, 0.77, 1.0):
        for path, text in texts.items():
            path.write_bytes(text[: int(len(text) * share)])
        recorded.read()
    at_once.read()
    assert at_once.grid.names and set(recorded.grid.names) == set(at_once.grid.names)
    for name in at_once.grid.names:
        np.testing.assert_allclose(recorded.grid.column(name), at_once.grid.column(name))


def test_learning_is_there_before_the_files_of_many_actors_are_read_and_then_nothing_is_missing(tmp_path: Path) -> None:
    run = made_up(tmp_path / "runs" / "one", actors=3)
    whole, soon = RecordedRun(run), RecordedRun(run)
    assert not whole.read()
    assert soon.read(seconds=0) and not soon.actors
    follower = PageFollower(soon)
    assert "actors.episode_return" not in follower.whole()["grid"]["figures"]
    assert soon.evaluations == whole.evaluations and soon.grid.column("steps").tolist() == whole.grid.column("steps").tolist()
    with open(run.metrics("actor-0"), "a") as file:  # while the others are still to be read
        file.write(run.metrics("actor-0").read_text().splitlines()[-1] + "\n")
    assert not soon.read() and list(soon.actors) == list(whole.actors)
    assert not whole.read()
    assert not soon.read()
    assert follower.news()["grid"]["from"] == 0, "bins of any age have other means now"
    for name, own in whole.actors.items():
        np.testing.assert_array_equal(soon.actors[name].column("steps_per_second"), own.column("steps_per_second"))
    for name in whole.grid.names:
        np.testing.assert_allclose(soon.grid.column(name), whole.grid.column(name))


def test_shards_of_replay_are_one_replay(tmp_path: Path) -> None:
    alone, several = made_up(tmp_path / "alone", seconds=300), made_up(tmp_path / "several", seconds=300)
    records = [json.loads(line) for line in several.metrics("replay").read_text().splitlines()]
    several.metrics("replay").unlink()
    for shard in (0, 1):
        halves = [
            record | {key: record[key] / 2 for key in SHARED} | {"time": record["time"] + shard * 1e-3} for record in records
        ]
        several.metrics(f"replay-{shard}").write_text("".join(json.dumps(half) + "\n" for half in halves))
    runs = [read(alone), read(several)]
    for name in ("items", "band_high", "inserted_steps_per_second"):
        expected, found = (one.grid.column(f"replay.{name}")[-1] for one in runs)
        assert found == pytest.approx(expected, rel=0.3 if name.endswith("second") else 1e-6)
    assert runs[1].newest["replay"]["items"] == runs[0].newest["replay"]["items"]
    one, two = (PageFollower(found).whole()["grid"]["steps"][-1] for found in runs)
    assert two == pytest.approx(one, rel=0.01)


def test_many_evaluations_are_thinned_and_the_best_stay() -> None:
    found = [RecordedEvaluation(float(number), number in (3, 77), {}) for number in range(EVALUATIONS)]
    fewer = thinned(found)
    assert {3.0, 77.0, EVALUATIONS - 1.0} <= {one.seconds for one in fewer} and len(fewer) <= EVALUATIONS // 2 + 2
    assert len(thinned([one._replace(best=True) for one in found])) == EVALUATIONS // 2
    half = [one._replace(best=one.seconds % 2 == 0) for one in found]
    assert len(at_most(half, 100)) <= 100, "also where every second one is the best so far"


@pytest.mark.parametrize(
    ("evaluation", "returns", "success"),
    [
        ({"policy_version": 123_456, "episodes": 20}, (5, 5), (None, None)),
        ({"policy_version": 1_234_567, "episodes": 1}, (None, None), (None, None)),  # one episode has no spread
        ({"policy_version": 999_999, "episodes": 20, "success_rate": 0.5}, (5, 5), (0.2993, 0.7007)),
        # out of bounds, as in a damaged file
        ({"policy_version": 999_999, "episodes": 20, "success_rate": 3.0}, (5, 5), (None, None)),
        ({"policy_version": 999_999, "episodes": 20, "success_rate": -0.5}, (5, 5), (None, None)),
        ({"policy_version": 999_999, "episodes": -1, "success_rate": 0.5}, (None, None), (None, None)),
    ],
)
def test_an_evaluation_has_its_whole_version_and_the_intervals_that_it_can_have(
    tmp_path: Path, evaluation: dict[str, float], returns: Any, success: Any
) -> None:
    run = made_up(tmp_path / "mine", seconds=60)
    with run.metrics("evaluator").open("a") as file:
        file.write(json.dumps({"time": BEGAN + 55, "return_mean": 5.0, "return_std": 0.0} | evaluation) + "\n")
    found = {name: values[-1] for name, values in PageFollower(read(run)).whole()["evaluations"].items()}
    assert found["policy_version"] == evaluation["policy_version"]
    assert (found["return_low"], found["return_high"]) == returns and (found["success_low"], found["success_high"]) == success


def test_counters_of_the_learner_are_left_out_for_their_rates() -> None:
    record = {"time": 1.0, "updates": 5.0, "updates_per_second": 2.0, "updates_per_second_60": 2.0, "loss": 0.5}
    assert learner_figures(record) == ["updates_per_second", "loss"]


def test_a_run_without_any_record_has_a_page(tmp_path: Path) -> None:
    run = made_up(tmp_path / "new", seconds=600)
    for path in (run.path / "metrics").iterdir():
        path.unlink()
    assert "grid" not in PageFollower(read(run)).whole()


def test_the_whole_log_is_searched_also_what_was_rotated(tmp_path: Path) -> None:
    run = made_up(tmp_path / "mine", seconds=60)
    run.log("run").with_name("run.log.1").write_text("2026-01-01 00:00:00 actor-0  | Old TROUBLE\n")
    assert RecordedRun(run).search("trouble", 5) == ["2026-01-01 00:00:00 actor-0  | Old TROUBLE"]
