"""The table of a run's figures: metrics/progress.csv."""

import csv
from pathlib import Path

import pytest

from deploy.reporting.base import Point
from deploy.reporting.sinks.files import CsvTable, FileConfig


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "metrics").mkdir()
    return tmp_path


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics" / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_new_tag_is_a_new_column_and_what_a_point_lacks_is_empty(run: Path) -> None:
    sink = CsvTable(run, FileConfig())
    sink.write(Point(100, 1.5, {"time/fps": 10.0}))
    sink.write(Point(200, 2.5, {"time/fps": 20.0, "eval/mean_reward": -1.0}))
    sink.write(Point(300, 3.5, {"train/loss": float("nan")}))
    sink.close()
    assert rows(run) == [
        {"steps": "100", "time": "1.5", "time/fps": "10.0", "eval/mean_reward": "", "train/loss": ""},
        {"steps": "200", "time": "2.5", "time/fps": "20.0", "eval/mean_reward": "-1.0", "train/loss": ""},
        {"steps": "300", "time": "3.5", "time/fps": "", "eval/mean_reward": "", "train/loss": "nan"},
    ]


def test_a_resumed_run_goes_on_with_the_table(run: Path) -> None:
    CsvTable(run, FileConfig()).write(Point(100, 1.5, {"time/fps": 10.0, "train/loss": 1.0}))
    CsvTable(run, FileConfig()).write(Point(200, 2.5, {"train/loss": 0.5}))
    assert [(row["steps"], row["time/fps"], row["train/loss"]) for row in rows(run)] == [
        ("100", "10.0", "1.0"),
        ("200", "", "0.5"),
    ]


def test_the_table_is_set_aside_when_it_is_full_and_one_that_was_deleted_begins_anew(run: Path) -> None:
    sink = CsvTable(run, FileConfig(bytes=10_000))
    for steps in range(0, 200_000, 100):
        sink.write(Point(steps, 1.5, {"time/fps": 10.0}))
    assert {path.name for path in (run / "metrics").iterdir()} == {"progress.csv", "progress.csv.1"}
    assert all(path.stat().st_size < 10_100 for path in (run / "metrics").iterdir()) and rows(run)[-1]["steps"] == "199900"
    (run / "metrics" / "progress.csv").unlink()
    sink.write(Point(1, 1.5, {"time/fps": 10.0}))
    assert [row["steps"] for row in rows(run)] == ["1"]


def test_a_point_is_lost_where_nothing_can_be_written(run: Path) -> None:
    (run / "metrics").rmdir()
    CsvTable(run, FileConfig()).write(Point(100, 1.5, {"time/fps": 10.0}))
