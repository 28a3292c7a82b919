"""What moves K arms: the contract that both backends keep."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

STEPS_PER_SECOND = 24
STEP_SECONDS = 1 / STEPS_PER_SECOND


class Motion(NamedTuple):
    """After a step: q [K, 6] rad, velocity [K, 6] rad/s, flange [K, 3] metres."""

    q: np.ndarray
    velocity: np.ndarray
    flange: np.ndarray


class Arms(Protocol):
    """K arms that are placed and then moved by joint velocities."""

    def place(self, where: np.ndarray, q: np.ndarray) -> np.ndarray:
        """Puts arms `where` [M] at q [M, 6], at rest. Gives their flanges [M, 3]."""

    def move(self, velocity: np.ndarray) -> Motion:
        """Turns the joints at velocity [K, 6] rad/s, which does not lead beyond a limit, for a step."""

    def show_target(self, target: np.ndarray) -> None:
        """Marks where the first arm is to go [3], where there is a window."""

    def picture(self, target: np.ndarray) -> np.ndarray:
        """[H, W, 3] RGB uint8 of the first arm and its target [3]."""

    def close(self) -> None:
        """Frees the simulator."""
