"""A run whose environments live in another interpreter than everything else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.children import child_environment, python_command

pytestmark = [pytest.mark.flow, pytest.mark.skipif(os.name != "posix", reason="a shell script")]

SETTINGS = """
--env CartPole-v1 --actors 1 --run mine --total-steps 2000 --algorithm.hidden 16 --actors.chunk-seconds 0.5 --device cpu
--replay.capacity 20_000 --replay.min-size 200 --learner.batch-size 32 --seed 3 --deploy.record-seconds 1
""".split()


@pytest.mark.slow
def test_whatever_makes_an_environment_runs_in_the_interpreter_named_and_nothing_else(tmp_path: Path) -> None:
    other, notes = tmp_path / "python", tmp_path / "notes"
    other.write_text(f'#!/bin/sh\necho "$*" >> "{notes}"\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o700)

    def headrace(*arguments: str) -> str:
        command, environment = python_command("deploy.cli.main", *arguments), child_environment()
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
        return done.stdout

    assert "of 2,000 environment steps done" in headrace("up", *SETTINGS, "--deploy.actor-python", str(other))
    headrace("eval", "mine", "--episodes", "1")
    lines = notes.read_text().splitlines()
    started = {words[2] for line in lines if (words := line.split())[:2] == ["-P", "-m"]}
    assert started == {"actors.envs.preflight.child", "actors", "actors.evaluation.evaluator", "actors.evaluation.evaluate"}
