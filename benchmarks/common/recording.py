"""Recorded frames of Mario: what every writer of `headrace bench replay` sends, and the peers' writers too.

Needs numpy alone, so that a peer's Python can read it. A writer plays the recording round and round. The reward that it sends
with a row is the row's number in the recording, so that the frames of each sampled item are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

FRAMES = Path(__file__).with_name("frames") / "mario.npz"
VECTOR = 22  # floats of the raw vector observation


@dataclass(frozen=True)
class Recording:
    """R rows of play in a circle: whole episodes, the last row being an episode's last.

    observation [R, …]; action [R] int32; terminated, truncated, valid [R] uint8; episode_step [R] int32. A truncated episode
    has one row more (valid = 0) with its last observation.
    """

    observation: np.ndarray
    action: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray
    episode_step: np.ndarray

    def __len__(self) -> int:
        return len(self.action)

    @property
    def starts(self) -> np.ndarray:
        """Rows at which an episode begins."""
        return np.flatnonzero((self.episode_step == 0) & (self.valid != 0))

    def columns(self) -> dict[str, np.ndarray]:
        """Everything by name, as a chunk has it, with the reward that is a row's number."""
        return vars(self) | {"reward": np.arange(len(self), dtype=np.float32)}

    def stack(self, row: np.ndarray, stack: int) -> np.ndarray:
        """The stacks [B, stack] of rows [B], oldest first: rows of the recording, none from before the episode's start."""
        back = np.arange(stack - 1, -1, -1)
        return (row[:, None] - np.minimum(back, self.episode_step[row][:, None])) % len(self)


def load_frames(path: Path = FRAMES) -> Recording:
    """The recorded frames of Mario, [R, 84, 84] uint8."""
    with np.load(path, allow_pickle=False) as file:
        return Recording(**{name: file[name] for name in file.files})


def vectors(frames: Recording) -> Recording:
    """The same play with vectors [R, 22] float32 for frames: smooth random motions, as a robot's joints make."""
    walk = np.random.default_rng(0).normal(size=(len(frames), VECTOR)).cumsum(axis=0)
    return Recording(**vars(frames) | {"observation": (walk / np.abs(walk).max()).astype(np.float32)})
