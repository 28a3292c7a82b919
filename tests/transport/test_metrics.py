"""Rates and phases."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from tests.harness.waiting import Clock
from transport import metrics as module
from transport.metrics import FILE_BYTES, FILES_KEPT, Metrics, Shares
from transport.run_dir import RunDir


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def numbers(*paths: Path) -> list[float]:
    return [json.loads(line)["number"] for path in paths for line in path.read_text().splitlines()]


def test_rates_follow_the_last_ten_and_sixty_seconds(clock: Clock) -> None:
    metrics = Metrics()
    metrics.count("steps", 50)
    clock.now += 5
    assert metrics.record()["steps_per_second"] == pytest.approx(10), "a young process has its rate since the start"
    metrics, record = Metrics(), {}
    for second in range(1, 121):
        metrics.count("steps", 100 if second <= 100 else 400)
        clock.now += 1
        if second % 5 == 0:
            record = metrics.record()
    assert record["steps"] == 100 * 100 + 20 * 400
    assert record["steps_per_second"] == pytest.approx(400)
    assert record["steps_per_second_60"] == pytest.approx((40 * 100 + 20 * 400) / 60)


def test_phases_are_shares_of_the_interval_and_start_anew(clock: Clock) -> None:
    metrics = Metrics()
    with metrics.phase("act"):
        clock.now += 2
    clock.now += 2
    metrics.mean("lag", 1.0)
    metrics.mean("lag", 3.0)
    record = metrics.record()
    assert record["act_fraction"] == pytest.approx(0.5) and record["lag"] == 2.0
    clock.now += 4
    assert metrics.record()["act_fraction"] == 0.0


def test_each_record_is_a_line_of_json_also_where_a_value_is_not_finite(clock: Clock, tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "m.jsonl")
    metrics.gauge("items", 7)
    metrics.gauge("band_high", float("inf"))
    clock.now += 1
    metrics.record()
    metrics.record()
    lines = [msgspec.json.decode(line) for line in (tmp_path / "m.jsonl").read_bytes().splitlines()]
    assert len(lines) == 2 and lines[0]["items"] == 7 and lines[0]["band_high"] is None and lines[0]["time"] == clock.now


@pytest.mark.skipif(os.name != "posix", reason="an open file cannot be removed")
def test_a_file_that_cannot_be_set_aside_ends_no_process(tmp_path: Path) -> None:
    path = tmp_path / "metrics" / "actor-0.jsonl"
    path.parent.mkdir()
    metrics = Metrics(path, limit_bytes=2_000)
    metrics.gauge("number", 0)
    metrics.record()
    shutil.rmtree(path.parent)  # by a person who needs the space
    for _ in range(100):
        metrics.record()
    path.parent.mkdir()
    metrics.gauge("number", 1)
    metrics.record()
    assert numbers(path) == [1]


def test_a_file_is_set_aside_at_its_limit_and_as_many_are_kept_as_the_configuration_says(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.transport.metrics_bytes == FILE_BYTES and run.transport.files_kept == FILES_KEPT
    run.settings("transport").parent.mkdir()
    run.settings("transport").write_text('{"metrics_bytes": 2000, "files_kept": 3}')
    path = tmp_path / "actor-0.jsonl"
    metrics = Metrics(path, run.transport.metrics_bytes, run.transport.files_kept)
    for number in range(400):
        metrics.gauge("number", number)
        metrics.record()
    older = [path.with_name(f"{path.name}.{n}") for n in (3, 2, 1)]
    assert sorted(tmp_path.glob("actor-0*")) == sorted([path, *older]) and max(file.stat().st_size for file in older) < 2_200
    kept = numbers(*older, path)
    assert kept == list(range(int(kept[0]), 400)), "oldest last, none missing in between"


def test_shares_tell_computing_from_waiting_for_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    moments, used, waited = iter([10.0, 20.0, 30.0]), iter([1.0, 6.0, 6.0]), iter([0.0, 2.5, None])
    # The module's own clock: other threads of this process go on reading the real one.
    clock = SimpleNamespace(monotonic=lambda: next(moments), process_time=lambda: next(used))
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "run_queue_seconds", lambda: next(waited))
    shares = Shares()
    assert shares.read() == {"processor_fraction": 0.5, "starved_fraction": 0.25}
    assert shares.read() == {"processor_fraction": 0.0}
