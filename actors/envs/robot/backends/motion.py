"""The protocol of the backends, which move K arms."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

STEPS_PER_SECOND = 24
STEP_SECONDS = 1 / STEPS_PER_SECOND
SHOWN_PER_SECOND = STEPS_PER_SECOND // 3  # in a window or video: a movement takes about a second, too fast to follow


class Motion(NamedTuple):
    """State after a step: q [K, 6] rad, velocity [K, 6] rad/s, flange [K, 3] metres."""

    q: np.ndarray
    velocity: np.ndarray
    flange: np.ndarray


class Arms(Protocol):
    """K arms, moved by joint velocities."""

    def place(self, where: np.ndarray, q: np.ndarray) -> np.ndarray:
        """Puts arms `where` [M] at q [M, 6], at rest. Gives their flanges [M, 3]."""

    def move(self, velocity: np.ndarray) -> Motion:
        """Moves the joints at velocity [K, 6] rad/s for one step; the caller keeps it within the joint limits."""

    def show_target(self, target: np.ndarray) -> None:
        """Shows the target [3] of the first arm, if there is a window."""

    def picture(self, target: np.ndarray) -> np.ndarray:
        """[H, W, 3] RGB uint8 of the first arm and its target [3]."""

    def close(self) -> None:
        """Frees the simulator. A second call does nothing."""
