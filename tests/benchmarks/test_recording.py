"""The recorded frames, and the script that makes them."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.record_frames import MAX_STEPS, STAGES, Recording, load_frames, ratio, record, save
from benchmarks.common.recording import FRAMES, VECTOR, vectors

needs_mario = pytest.mark.skipif(find_spec("nes_py") is None, reason="nes-py is not installed: pip install 'headrace[mario]'")


@pytest.fixture(scope="module")
def frames() -> Recording:
    return load_frames()


def test_the_file_is_small_and_holds_whole_episodes_of_frames(frames: Recording) -> None:
    assert FRAMES.stat().st_size < 1_000_000
    assert 1000 <= len(frames) <= 2048
    assert frames.observation.shape == (len(frames), 84, 84) and frames.observation.dtype == np.uint8
    ends = (frames.terminated != 0) | (frames.valid == 0)
    assert ends[-1]
    np.testing.assert_array_equal(frames.starts[1:], np.flatnonzero(ends)[:-1] + 1)
    inside = np.setdiff1d(np.arange(len(frames)), frames.starts)
    np.testing.assert_array_equal(frames.episode_step[inside], frames.episode_step[inside - 1] + 1)
    np.testing.assert_array_equal(np.flatnonzero(frames.valid == 0), np.flatnonzero(frames.truncated) + 1)


def test_the_frames_are_as_compressible_as_real_ones_are(frames: Recording) -> None:
    assert 3 < ratio(frames, "lz4", 1) < 8
    assert 8 < ratio(frames, "lz4") < 16
    assert 14 < ratio(frames, "zstd") < 28


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


def test_vectors_are_told_apart_row_by_row(frames: Recording) -> None:
    rows = vectors(frames).observation
    assert rows.shape == (len(frames), VECTOR) and rows.dtype == np.float32
    assert len(np.unique(rows, axis=0)) == len(rows)


@pytest.mark.parametrize(
    ("module", "absent"),
    [("benchmarks.replay.roles", ["torch"]), ("benchmarks.peers.common", ["torch", "msgspec", "zmq", "transport"])],
)
def test_what_must_stay_light_imports_nothing_heavy(module: str, absent: list[str]) -> None:
    code = f"import sys, {module}; sys.exit(', '.join(set({absent}) & sys.modules.keys()) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
