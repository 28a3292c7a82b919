"""`headrace suite` with a real run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.waiting import ROOT

pytestmark = [pytest.mark.flow, pytest.mark.slow]

SUITE = """
seeds = [5]
minutes = 2
snapshot_seconds = 0.2
episodes = 3
[tasks.CartPole-v1]
total_steps = 4000
random = 22
reference = 500
[contestants.headrace]
settings.replay.min_size = 200
settings.actors.count = 1
"""


def test_a_run_is_trained_evaluated_and_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SUITE)
    command = [sys.executable, "-P", "-m", "deploy.cli.main", "suite", "mine.toml", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "results" / "mine").glob("*.json")
    result = json.loads(path.read_text())
    curve = result["curve"]
    assert result["training"]["ended"] == "by itself" and result["training"]["steps"] >= 4000
    assert len(curve) >= 2 and [point["seconds"] for point in curve] == sorted(point["seconds"] for point in curve)
    assert curve[-1]["steps"] >= 4000 and all(len(point["episodes"]["return"]) == 3 for point in curve)
    assert result["configuration"]["seed"] == 5 and result["configuration"]["replay"]["min_size"] == 200
    assert not result["configuration"]["evaluator"]["enabled"]
    (task,) = json.loads(done.stdout)["tasks"]
    assert task["contestants"][0]["steps"] == [result["training"]["steps"]]
    assert not list((tmp_path / "runs").glob("mine-*")), "the run's folder is removed when its result is there"
