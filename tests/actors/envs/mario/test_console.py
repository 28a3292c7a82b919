"""Mario plays alike on nes-py 8 and nes-py 9. Each needs a Python of its own, so this asks for another interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.actors.envs.mario.recital import Piece
from tests.actors.envs.mario.test_env import DOWN, ONTO_THE_PIPE, TO_THE_FLAG

ROOT = Path(__file__).resolve().parents[4]
VARIABLE = "HEADRACE_OTHER_PYTHON"
OTHER = os.environ.get(VARIABLE, "")

pytestmark = [
    pytest.mark.skipif(find_spec("nes_py") is None, reason="nes-py is not installed: pip install 'headrace[mario]'"),
    pytest.mark.skipif(not OTHER, reason=f"{VARIABLE} names no interpreter with the other generation of nes-py"),
]


def make_pieces(whole: bool) -> list[Piece]:
    """A pipe there and back, and seeded hurry through other stages, mostly to the right and to death. `whole`: longer, and a
    level to its flag."""
    rng = np.random.default_rng(7)
    hurried = [("1-2", "complex", 40 if whole else 20), ("4-1", "simple", 0), ("8-4", "complex", 0), ("5-3", "right", 0)]
    back = [4 if step % 12 < 6 else 1 for step in range(60)]
    length = 150 if whole else 45
    made = [Piece("1-1", "complex", 0, [0] * 9, [*map(int, ONTO_THE_PIPE), DOWN, *back])]
    if whole:
        made.append(Piece("1-1", "", 0, [0] + [17] * 9, [*map(int, TO_THE_FLAG), *back]))
    for stage, actions, max_steps in hurried:
        size = {"right": 5, "simple": 7, "complex": 12}[actions]
        ahead, any_action = rng.choice([1, 3, 4, 4], length), rng.integers(size, size=length)
        script = np.where(rng.random(length) < 0.7, ahead, any_action).tolist()
        made.append(Piece(stage, actions, max_steps, rng.integers(31, size=length + 1).tolist(), script))
    return made


def recite(interpreter: str, folder: Path, pieces: list[Piece]) -> tuple[str, np.ndarray, list[Any]]:
    """Plays the pieces with an interpreter: (version of nes-py, observations, notes)."""
    out = folder / "played.npz"
    command = [interpreter, "-m", "tests.actors.envs.mario.recital", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, input=json.dumps(pieces), env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(out, allow_pickle=False) as played:
        return str(played["version"]), played["observations"], json.loads(str(played["notes"]))


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["short", "whole"])
def test_both_generations_give_the_same_observations_rewards_ends_and_info(tmp_path: Path, whole: bool) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    pieces = make_pieces(whole)
    version, observations, notes = recite(sys.executable, tmp_path / "here", pieces)
    other_version, other_observations, other_notes = recite(OTHER, tmp_path / "there", pieces)
    assert {version[0], other_version[0]} == {"8", "9"}, "both interpreters have the same generation"
    for index, (note, other) in enumerate(zip(notes, other_notes, strict=True)):
        assert note == other, f"record {index}"
    assert np.array_equal(observations, other_observations)
    steps = [note for note in notes if len(note) == 6]  # reward, terminated, truncated, info, screen, RAM
    ends = [info["is_success"] for _, terminated, _, info, *_ in steps if terminated]
    assert len(steps) > (1_000 if whole else 300) and ends.count(False) > (5 if whole else 1) and ends.count(True) == whole
    assert any(truncated for _, _, truncated, *_ in steps)
