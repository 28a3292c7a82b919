"""Environments of other people through a whole run. Slow; tests/actors/envs/test_strangers.py is the short version."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from deploy.children import child_environment, python_command
from learner.weights import checkpoint
from transport.run_dir import RunDir

SETTINGS = """
--actors 1 --replay.min-size 500 --replay.capacity 20_000 --learner.updates-per-epoch 10 --learner.publish-epochs 1
--learner.checkpoint-epochs 2 --device cpu --evaluator.max-episode-steps 2_000 --stop-after 45s
""".split()


@pytest.mark.slow
@pytest.mark.flow
@pytest.mark.parametrize("name", ["LargeRewards", "OneStep", "LongEpisodes", "Mixture", "ManyChoices", "BreaksDown", "Endless"])
def test_a_run_learns_stops_and_is_evaluated(name: str, tmp_path: Path) -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        typed = python_command("deploy.cli.main", *arguments)
        return subprocess.run(typed, cwd=tmp_path, env=child_environment(), capture_output=True, text=True, timeout=150)

    env_id = f"tests.actors.toy_envs:{name}"
    done = command("up", "--env", env_id, "--run", "mine", *SETTINGS)
    run_dir = RunDir(tmp_path / "runs" / "mine")
    try:
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr
        assert "Traceback" not in done.stdout and " died" not in done.stdout
        weights, _ = checkpoint.read(run_dir.latest)
        assert all(bool(np.isfinite(tensor).all()) for tensor in weights.values())
        records = [json.loads(line) for line in run_dir.metrics("learner").read_text().splitlines()]
        assert records[-1]["updates"] > 0 and records[-1].get("ignored", 0) == 0 and not records[-1].get("skipped_updates")
        played = command("eval", "mine", "--episodes", "4", "--json")
        assert played.returncode == 0 and json.loads(played.stdout)["episodes"] == 4, played.stderr
    finally:
        run_dir.remove_sockets()
