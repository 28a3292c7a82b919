"""The recorded frames, and the script that makes them."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.record_frames import MAX_STEPS, STAGES, Recording, load_frames, record, save

needs_mario = pytest.mark.skipif(find_spec("nes_py") is None, reason="nes-py is not installed: pip install 'headrace[mario]'")


@pytest.fixture(scope="module")
def frames() -> Recording:
    return load_frames()


@needs_mario
def test_recording_again_gives_the_file_that_is_shipped(frames: Recording, tmp_path: Path) -> None:
    from actors.envs.mario.env import MarioEnv

    env = MarioEnv(STAGES[0], max_steps=MAX_STEPS)
    save(tmp_path / "again.npz", record([env], 1, seed=0))
    env.close()
    again = load_frames(tmp_path / "again.npz")
    assert len(again) == frames.starts[1]  # the first episode
    for name, values in vars(again).items():
        np.testing.assert_array_equal(values, vars(frames)[name][: len(again)])


@pytest.mark.parametrize(
    ("module", "absent"),
    [("benchmarks.replay.roles", ["torch"]), ("benchmarks.peers.common", ["torch", "msgspec", "zmq", "transport"])],
)
def test_what_must_stay_light_imports_nothing_heavy(module: str, absent: list[str]) -> None:
    code = f"import sys, {module}; sys.exit(', '.join(set({absent}) & sys.modules.keys()) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
