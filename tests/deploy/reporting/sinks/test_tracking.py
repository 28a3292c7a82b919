"""Weights & Biases and MLflow without a service: the figures that arrive are those that were written, and nothing else is."""

import contextlib
import getpass
import json
import math
import os
import socket
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from deploy.config.files import FLAGS, Layer, write_config
from deploy.config.layers import resolve
from deploy.config.run import DeployConfig
from deploy.errors import ConfigError
from deploy.reporting.base import Point
from deploy.reporting.sinks import feeds
from deploy.reporting.sinks.feeds import Sinks
from deploy.reporting.sinks.hyperparameters import hyperparameters
from deploy.reporting.sinks.mlflow import named
from tests.harness.waiting import wait_until

POINTS = [
    Point(100, 1_700_000_000.5, {"time/total_timesteps": 100.0, "rollout/ep_rew_mean": -1.25, "train/loss": math.nan}),
    Point(200, 1_700_000_010.5, {"time/total_timesteps": 200.0, "rollout/ep_rew_mean": 1e30, "eval/mean_reward": 3.0}),
    Point(300, 1_700_000_020.5, {"time/total_timesteps": 300.0, "info/distance": 1e-9}),
]
SECRET = "/home/somebody/arms/left.urdf"
IMPORT_SECONDS = 240.0  # a sink's process yields to others: on a busy machine importing alone takes most of a minute


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder, without any setting of a tracking service in the environment."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))  # where accounts are kept
    folder = tmp_path / "night"
    folder.mkdir()
    given = {"env": {"id": "robot", "urdf": SECRET}, "deploy": {"advertise": "the-name-of-this-host"}}
    (folder / "config.toml").write_bytes(write_config(resolve([Layer(FLAGS, given)])))
    return folder


def written(run: Path, said: list[str], name: str, points: list[Point] = POINTS, **options: object) -> None:
    """A run of these points with one sink, from its beginning to its end."""
    deploy = DeployConfig(sinks=(), track=(name,), sink_options={name: options})
    made = Sinks(deploy, run, said.append, lambda label, line: said.append(f"{label} | {line}"))
    for point in points:
        made.write(point)
    made.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "PROCESS_CLOSE_SECONDS", IMPORT_SECONDS)


def test_settings_have_no_names_of_machines_and_no_folders(run: Path) -> None:
    found = hyperparameters(run)
    assert found["env.id"] == "robot" and found["env.urdf"] == "left.urdf" and found["learner.batch_size"]
    assert not [name for name in found if name.startswith("deploy")]


# ---- Weights & Biases


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a run's file: LevelDB's log format, blocks of 32 KiB, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the rest of a block
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the whole of a record, or its last part
            yield wandb_internal_pb2.Record.FromString(whole)  # type: ignore[attr-defined]
            whole = b""


def wandb_history(run: Path) -> list[dict[str, float]]:
    found = []
    for path in sorted((run / "tracking" / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        for record in wandb_records(path):
            items = record.history.item if record.HasField("history") else ()
            row = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in items}
            found += [row] if row else []
    return found


def same(arrived: object, value: float) -> bool:
    return math.isnan(value) and str(arrived) in ("NaN", "nan") or arrived == value


def test_wandb_offline_has_the_figures_of_a_run_and_of_its_resume_and_nothing_about_the_machine(run: Path) -> None:
    pytest.importorskip("wandb", reason="needs wandb: pip install 'headrace[track]'")
    said: list[str] = []
    for points in (POINTS[:2], POINTS[2:]):
        written(run, said, "wandb", points, mode="offline")
    assert said == []
    check_figures(wandb_history(run))
    paths = list((run / "tracking" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(paths) == 2 and len({path.parent.name.rpartition("-")[2] for path in paths}) == 1, "one run to the service"
    records = [record for path in paths for record in wandb_records(path)]
    for started in (record.run for record in records if record.HasField("run")):
        assert started.host == "-" and not started.HasField("git") and started.display_name == "night"
    sent = b"".join(record.SerializeToString() for record in records)
    for word in (str(run), SECRET, "the-name-of-this-host", os.getcwd(), f'"{socket.gethostname()}"', f'"{getpass.getuser()}"'):
        assert word.encode() not in sent, word
    files = [file for path in paths for file in (path.parent / "files").rglob("*")]
    assert not [file for file in files if file.suffix in (".py", ".txt", ".patch")]


def test_without_an_account_the_figures_for_wandb_are_in_the_runs_folder(run: Path) -> None:
    pytest.importorskip("wandb", reason="needs wandb: pip install 'headrace[track]'")
    said: list[str] = []
    written(run, said, "wandb")
    (line,) = said
    assert line.startswith("wandb | No API key configured") and "`wandb sync --sync-all` sends later" in line
    check_figures(wandb_history(run))


def check_figures(arrived: list[dict[str, float]]) -> None:
    assert len(arrived) == len(POINTS)
    for row, point in zip(arrived, POINTS, strict=True):
        assert {name for name in row if not name.startswith("_")} == set(point.values)
        assert all(same(row[tag], value) for tag, value in point.values.items()) and row["_timestamp"] == point.time


# ---- MLflow


@pytest.mark.slow
def test_mlflow_has_the_figures_that_were_written_and_goes_on_after_a_resume(run: Path) -> None:
    if find_spec("mlflow") is None:
        pytest.skip("needs mlflow: pip install 'headrace[track]'")
    said: list[str] = []
    written(run, said, "mlflow", POINTS[:2])
    written(run, said, "mlflow", POINTS[2:])
    assert not [line for line in said if "off for the rest" in line or "is ended" in line], said
    with contextlib.closing(sqlite3.connect(run / "tracking" / "mlflow.db")) as database:
        assert database.execute("select name, status from runs").fetchall() == [("night", "FINISHED")]
        assert database.execute("select value from params where key = 'env.urdf'").fetchall() == [("left.urdf",)]
        assert {key for (key,) in database.execute("select key from tags")} == {"headrace.id", "mlflow.runName"}
        rows = database.execute("select key, step, timestamp, value, is_nan from metrics").fetchall()
    arrived = {(tag, step, milliseconds): math.nan if nan else value for tag, step, milliseconds, value, nan in rows}
    expected = {(tag, at.steps, int(at.time * 1000)): value for at in POINTS for tag, value in at.values.items()}
    assert arrived.keys() == expected.keys() and all(same(arrived[key], value) for key, value in expected.items())


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("rollout/info/distance-2.x", "rollout/info/distance-2.x"),
        ("train/KL(p, q)", "train/KL_p_ q_"),
        ("train/a//b/", "train/a/b"),
        ("train/φ:1", "train/φ_1"),
    ],
)
def test_any_tag_becomes_a_name_that_mlflow_takes(tag: str, name: str) -> None:
    assert named(tag) == name
    if find_spec("mlflow") is not None:
        from mlflow.utils.validation import _validate_metric_name

        _validate_metric_name(name)


# ---- a service that does not answer


@pytest.fixture
def silent() -> Iterator[tuple[str, list[socket.socket]]]:
    """The address of a server that takes connections and never answers, and the connections."""
    server = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                held.append(server.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}", held
    with contextlib.suppress(OSError):  # Windows: it is not connected; close() wakes accept() up there
        server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()
    for each in held:
        each.close()


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_service_that_hangs_delays_neither_the_run_nor_its_end(
    name: str, run: Path, silent: tuple[str, list[socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec(name) is None:
        pytest.skip(f"needs {name}: pip install 'headrace[track]'")
    monkeypatch.setattr(feeds, "CLOSE_SECONDS", 1.0)
    monkeypatch.setattr(feeds, "PROCESS_CLOSE_SECONDS", 1.0)
    monkeypatch.setenv("WANDB_BASE_URL", silent[0])
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", silent[0])
    said: list[str] = []
    made = Sinks(DeployConfig(sinks=("jsonl",), track=(name,)), run, said.append, lambda label, line: None)
    (run / "metrics").mkdir()
    slowest = 0.0
    for _ in range(300):
        before = time.monotonic()
        made.write(POINTS[0])
        slowest = max(slowest, time.monotonic() - before)
    others = run / "metrics" / "run.jsonl"
    wait_until(lambda: others.exists() and len(others.read_text().splitlines()) >= 100, what="the other sink has its points")
    wait_until(lambda: silent[1], seconds=IMPORT_SECONDS, what="it has asked the service")
    before = time.monotonic()
    made.close()
    assert slowest < 10 and time.monotonic() - before < 60
    assert f"sink {name} is ended: 1 s after the run it had not written all its points" in said


def test_a_package_that_is_not_installed_is_one_line_before_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "find_spec", lambda name: None)
    for name, extra in (("wandb", "track"), ("mlflow", "track"), ("prometheus", "metrics")):
        with pytest.raises(ConfigError, match=rf"sink {name} needs .* pip install .*\[{extra}\]['\"]"):
            feeds.check(DeployConfig(sinks=(), track=(name,)))
