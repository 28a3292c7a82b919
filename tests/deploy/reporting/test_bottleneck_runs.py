"""The bottleneck sentence about real runs that were built to have one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.children import child_environment

# The supervisor's own command line, only that it gives its verdict sooner.
UP = """
import sys
from deploy.cli import main
from deploy.supervision import reports
reports.BOTTLENECK_SECONDS = 14.0
sys.exit(main.main(["up", *sys.argv[1:]]))
"""
COMMON = ["--stop-after", "30s", "--env.chunk-length", "16", "--evaluator.enabled", "false", "--replay.min-size", "500"]
CASES = [
    pytest.param("sleepy", ["--actors", "1", "--envs-per-actor", "1", "--replay.min-size", "100", "--learner.batch-size", "32"],
                 "simulators (actors", "try more actors", id="slow-simulator"),
    pytest.param("quick", ["--actors", "1", "--learner.batch-size", "500", "--algorithm.hidden", "3000"],
                 "learner (updates take", "a faster device", id="slow-update"),
    pytest.param("quick", ["--actors", "1", "--replay.samples-per-insert-low", "0.1", "--replay.samples-per-insert-high", "0.5",
                           "--algorithm.hidden", "32", "--learner.batch-size", "32"],
                 "limiter (learner waits", "a higher --replay.samples-per-insert-high", id="tight-band"),
    pytest.param("busy", ["--actors", "3", "--envs-per-actor", "1"],
                 "processor (actors wait", "fewer actors", id="starved-core"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.flow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the starved case is pinned to one core")
@pytest.mark.parametrize(("pace", "settings", "limit", "advice"), CASES)
def test_the_sentence_names_what_the_run_was_built_with(
    tmp_path: Path, request: pytest.FixtureRequest, pace: str, settings: list[str], limit: str, advice: str
) -> None:
    before = os.sched_getaffinity(0)
    if "starved" in request.node.name:
        os.sched_setaffinity(0, {min(before)})  # the run inherits it
    try:
        command = [sys.executable, "-P", "-c", UP, "--env", f"tests.deploy.paced_env:{pace}", *COMMON, *settings]
        done = subprocess.run(command, cwd=tmp_path, env=child_environment(), capture_output=True, text=True, timeout=280)
    finally:
        os.sched_setaffinity(0, before)
    verdicts = [line for line in done.stdout.splitlines() if line.startswith("bottleneck: ")]
    assert done.returncode == 0 and verdicts, done.stdout + done.stderr
    assert verdicts[-1].startswith(f"bottleneck: {limit}") and advice in verdicts[-1]
