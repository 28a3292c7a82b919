"""Runs learn what they are known to learn: real runs of minutes, `make learn-check`. Figures are for two idle cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EVALUATION_SECONDS = 300

CASES = [
    # up's options, the figure of `eval --json`, what it must reach, episodes
    pytest.param("--env CartPole-v1 --algo dqn --stop-after 90s", "return_mean", 400.0, 100, id="cartpole-dqn"),
    pytest.param("--env CartPole-v1 --algo ppo --stop-after 60s", "return_mean", 475.0, 100, id="cartpole-ppo"),
    pytest.param(
        "--env CartPole-v1 --replay.shards 4 --actors 4 --stop-after 180s", "return_mean", 475.0, 100, id="cartpole-4-shards"
    ),
    pytest.param("--env Pendulum-v1 --stop-after 120s", "return_mean", -200.0, 100, id="pendulum-sac"),
    pytest.param("--env snake --stop-after 120s", "score_mean", 25.0, 100, id="snake-ppo"),
    pytest.param("--env mario --stop-after 600s", "return_mean", 1500.0, 100, id="mario-ppo"),
    pytest.param("--env robot --stop-after 300s", "success_rate", 0.9, 300, id="robot-ppo"),
    pytest.param("--env robot --algo sac --env.tier easy --total-steps 25000", "success_rate", 0.9, 300, id="robot-sac"),
]


def headrace(folder: Path, *arguments: str, seconds: float) -> str:
    command = [sys.executable, "-m", "deploy.cli.main", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr + done.stdout[-2_000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(("options", "figure", "least", "episodes"), CASES)
def test_a_run_learns(tmp_path: Path, options: str, figure: str, least: float, episodes: int) -> None:
    headrace(tmp_path, "up", *options.split(), "--run", "learning", seconds=900)
    told = headrace(tmp_path, "eval", "learning", "--episodes", str(episodes), "--json", seconds=EVALUATION_SECONDS)
    found = json.loads(told.splitlines()[-1])
    print(options, found)
    assert found[figure] >= least
