"""`python -m tests.actors.envs.mario.recital OUT.npz < PIECES`: plays given inputs and notes all that MarioEnv says.

It runs on whichever generation of nes-py its interpreter has. PIECES is JSON, a list of Piece.
"""

from __future__ import annotations

import json
import sys
import zlib
from importlib import metadata
from typing import NamedTuple

import numpy as np

from actors.config import EnvConfig
from actors.envs.make import make_env


class Piece(NamedTuple):
    """A stage, a set of actions, a step limit (0: the usual), the no-ops of one reset after the other, and the actions."""

    stage: str
    actions: str
    max_steps: int
    noops: list[int]
    script: list[int]


def play(piece: Piece) -> tuple[list[np.ndarray], list[object]]:
    """What resets and steps gave, in order: observations, and everything else with checksums of screen and RAM."""
    options = {"actions": piece.actions, "backend": "nes_py"}
    env = make_env(EnvConfig(id=f"mario:{piece.stage}", max_episode_steps=piece.max_steps, options=options))
    console = env.console  # type: ignore[attr-defined]
    observations: list[np.ndarray] = []
    notes: list[object] = []

    def note(observation: np.ndarray, *said: object) -> None:
        observations.append(observation)
        notes.append([*said, zlib.crc32(console.frame[..., :3].tobytes()), zlib.crc32(console.ram)])

    noops = iter(piece.noops)
    note(*env.reset(options={"noops": next(noops)}))
    for action in piece.script:
        observation, reward, terminated, truncated, info = env.step(action)
        note(observation, reward, terminated, truncated, info)
        if terminated or truncated:
            note(*env.reset(options={"noops": next(noops)}))
    env.close()
    return observations, notes


def main() -> None:
    """Writes the observations [N, 84, 84] uint8 and the notes, as JSON, with the emulator's version."""
    played = [play(Piece(*piece)) for piece in json.load(sys.stdin)]
    observations = np.stack([observation for part, _ in played for observation in part])
    notes = json.dumps([note for _, part in played for note in part])
    np.savez(sys.argv[1], observations=observations, notes=notes, version=metadata.version("nes-py"))


if __name__ == "__main__":
    main()
