"""An environment family and a factory of someone else's package, through `headrace up`, resume and eval, without an edit here."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.children import ROOT, python_command

pytestmark = [pytest.mark.flow, pytest.mark.timeout(900)]

SMALL = """
--actors 1 --actors.chunk-seconds 0.5 --algorithm.hidden 16 --replay.capacity 20_000 --replay.min-size 200
--learner.batch-size 32 --device cpu --run mine --deploy.record-seconds 1 --evaluator.enabled false
""".split()


def headrace(folder: Path, *arguments: str, status: int = 0, seconds: float = 200) -> str:
    """The command as the package's author runs it: their package is importable, nothing of it is known here."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)])}
    command = python_command("deploy.cli.main", *arguments)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == status, done.stdout[-4000:] + done.stderr
    return done.stdout + done.stderr


def evaluated(folder: Path, episodes: int) -> dict[str, Any]:
    """What `headrace eval --json` answers; the other lines are what it says on the way."""
    lines = headrace(folder, "eval", "mine", "--episodes", str(episodes), "--json", seconds=400).splitlines()
    figures: dict[str, Any] = json.loads(next(line for line in lines if line.startswith("{")))
    return figures


def env_section(folder: Path) -> dict[str, Any]:
    section: dict[str, Any] = tomllib.loads((folder / "runs" / "mine" / "config.toml").read_text())["env"]
    return section


@pytest.mark.slow
def test_a_family_with_options_runs_resumes_and_is_evaluated(tmp_path: Path) -> None:
    env = ("--env", "stranger.envs:Corridors:narrow", "--env.length", "6")
    started = headrace(tmp_path, "up", *env, *SMALL, "--total-steps", "600")
    assert "Box(6) x 3 -> 2 actions" in started  # three observations are stacked, as the family declares
    section = env_section(tmp_path)
    assert (section["id"], section["length"], section["backend"]) == ("stranger.envs:Corridors:narrow", 6, "fast")
    assert "another env.length (6, now 7)" in headrace(tmp_path, "up", *SMALL, "--env.length", "7", status=2)
    resumed = headrace(tmp_path, "up", *SMALL, "--stop-after", "1s", "--total-steps", "0", "--env.backend", "slow")
    assert "resuming run mine" in resumed and env_section(tmp_path)["backend"] == "slow"
    figures = evaluated(tmp_path, 2)
    assert figures["env"] == "stranger.envs:Corridors:narrow" and figures["episodes"] == 2


def test_a_factory_takes_options_and_wrappers(tmp_path: Path, said: Callable[..., str]) -> None:
    env = ("--env", "stranger.envs:make_maze", "--env.size", "4", "--env.rooms", "1,2", "--env.slip", "0.5")
    wrappers = ("--env.wrappers", "stranger.envs:Doubled")
    assert "Box(8) -> 2 actions" in headrace(tmp_path, "up", *env, *wrappers, *SMALL, "--total-steps", "600")
    section = env_section(tmp_path)
    assert (section["size"], section["rooms"], section["slip"]) == (4, [1, 2], 0.5)
    assert section["wrappers"] == ["stranger.envs:Doubled"]
    assert "mine: stranger.envs:make_maze" in said("eval", "mine", "--episodes", "2")


def test_what_the_package_does_not_take_is_one_line_before_launch(tmp_path: Path, said: Callable[..., str]) -> None:
    for flags, words in (
        (("--env", "stranger.envs:make_maze", "--env.siz", "4"), "unknown option --env.siz; did you mean --env.size?"),
        (("--env", "stranger.envs:Corridors", "--env.length", "1"), "--env.length: expected int >= 2, got 1"),
        (("--env", "stranger.envs:Corridorz"), "has no Corridorz; did you mean Corridors?"),
    ):
        refused = said("up", *flags, status=2)
        assert words in refused and "Traceback" not in refused
    assert not (tmp_path / "runs").exists()
