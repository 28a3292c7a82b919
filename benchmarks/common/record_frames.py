"""`python -m benchmarks.common.record_frames`: records the frames that `headrace bench replay` sends, as MarioEnv gives them.

Plays several stages by a policy that keeps its random action three times out of four; the same seed records the same file.
Wants the `mario` extra.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np

from actors.envs.mario.constants import MAX_NOOPS
from actors.envs.mario.env import MarioEnv
from benchmarks.common.recording import FRAMES, Recording, load_frames
from transport.compression import compress

STAGES = ("1-1", "1-2", "3-1", "8-1")
STICKY = 0.75
CHUNK = 128
MAX_STEPS = 200  # of an episode: several of them show more of a level than one that stands before a pipe
OLDEST = (1980, 1, 1, 0, 0, 0)  # of a zip entry: so that the file does not depend on the day


class Row(NamedTuple):
    """One row of a recording."""

    observation: np.ndarray
    action: int
    terminated: bool
    truncated: bool
    valid: bool
    episode_step: int


def play(env: gymnasium.Env, generator: np.random.Generator, at_least: int) -> Iterator[Row]:
    """Whole episodes, until there are enough rows."""
    rows = 0
    while rows < at_least:
        observation, _ = env.reset(options={"noops": int(generator.integers(MAX_NOOPS + 1))})
        step, terminated, truncated = 0, False, False
        while not (terminated or truncated):
            if step == 0 or generator.random() > STICKY:
                action = int(generator.integers(env.action_space.n))  # type: ignore[attr-defined]
            following, _, terminated, truncated, _ = env.step(action)
            yield Row(observation, action, terminated, truncated, True, step)
            observation, step = following, step + 1
        if truncated:
            yield Row(observation, 0, False, False, False, step)
        rows += step


def record(envs: list[gymnasium.Env], at_least: int, seed: int) -> Recording:
    """At least so many rows of each of the environments."""
    generator = np.random.default_rng(seed)
    played = [row for env in envs for row in play(env, generator, at_least)]
    types = {"observation": np.uint8, "action": np.int32, "episode_step": np.int32}
    columns = zip(Row._fields, zip(*played, strict=True), strict=True)
    return Recording(**{name: np.array(values, types.get(name, np.uint8)) for name, values in columns})


def save(path: Path, recording: Recording) -> None:
    """Writes what np.load reads, compressed harder than np.savez_compressed does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, values in vars(recording).items():
            with archive.open(entry(f"{name}.npy"), "w") as file:
                np.lib.format.write_array(file, values, allow_pickle=False)


def entry(name: str) -> zipfile.ZipInfo:
    """An archive's entry without a date."""
    info = zipfile.ZipInfo(name, OLDEST)
    info.compress_type = zipfile.ZIP_LZMA
    return info


def ratio(recording: Recording, codec: str, rows: int = CHUNK) -> float:
    """How many times smaller a codec makes the frames in chunks of `rows` rows."""
    frames = recording.observation
    chunks = [np.ascontiguousarray(frames[start : start + rows]).data.cast("B") for start in range(0, len(frames), rows)]
    return frames.nbytes / sum(len(compress(codec, chunk)) for chunk in chunks)


def run(arguments: list[str] | None = None) -> int:
    """Parses the command line and records."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.common.record_frames",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=400, help="rows of each stage at least (default 400)")
    parser.add_argument("--seed", type=int, default=0, help="of the policy (default 0)")
    parser.add_argument("--out", type=Path, default=FRAMES, help=f"the file (default {FRAMES.parent.name}/{FRAMES.name})")
    options = parser.parse_args(arguments)
    envs: list[gymnasium.Env] = [MarioEnv(stage, max_steps=MAX_STEPS) for stage in STAGES]
    try:
        save(options.out, record(envs, options.rows, options.seed))
    finally:
        for env in envs:
            env.close()
    recording = load_frames(options.out)
    print(
        f"{len(recording):,} rows, {len(recording.starts)} episodes of {', '.join(STAGES)}; {options.out.stat().st_size:,} bytes;"
        f" chunks of {CHUNK}: lz4 {ratio(recording, 'lz4'):.1f}x, zstd {ratio(recording, 'zstd'):.1f}x;"
        f" single frames: lz4 {ratio(recording, 'lz4', 1):.1f}x, zstd {ratio(recording, 'zstd', 1):.1f}x"
    )
    return 0


if __name__ == "__main__":
    sys.exit(run())
