"""Whole runs end at the steps that they were given, also after a resume and with several replay processes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from deploy.children import python_command

pytestmark = [pytest.mark.flow, pytest.mark.slow]

SMALL = "--actors 2 --envs-per-actor 4 --device cpu --evaluator.enabled false --learner.threads 1".split()
A_CHUNK_EACH = 2 * 4 * 128  # of rollouts, which are the longest


@pytest.mark.parametrize("options", ["--algo ppo", "--algo dqn", "--algo dqn --replay.shards 2"])
def test_a_run_ends_at_the_steps_that_it_was_given(options: str, tmp_path: Path) -> None:
    for total, given in ((12_000, ["--env", "CartPole-v1", *options.split(), *SMALL]), (20_000, list[str]())):
        command = python_command("deploy.cli.main", "up", *given, "--run", "mine", "--total-steps", str(total))
        subprocess.run(command, cwd=tmp_path, check=True, timeout=200, capture_output=True)
        steps = json.loads((tmp_path / "runs/mine/status.json").read_text())["steps"]
        assert total <= steps <= total + A_CHUNK_EACH
