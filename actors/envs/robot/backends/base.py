"""The protocol of the backends, which move K arms; and the backend without physics, which integrates joint velocities."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from actors.envs.robot.arm.kinematics import Kinematics
from actors.envs.robot.picture import draw_arm

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


class KinematicArms(Arms):
    """Joints take the wanted velocity at once. An arm stays where it is if the step would make it collide with itself or the
    floor."""

    def __init__(self, kinematics: Kinematics, count: int) -> None:
        self._kinematics = kinematics
        self._q, self._flange = np.zeros((count, 6)), np.zeros((count, 3))

    def place(self, where: np.ndarray, q: np.ndarray) -> np.ndarray:
        self._q[where] = q
        self._flange[where] = self._kinematics.flange(q)
        return self._flange[where]

    def move(self, velocity: np.ndarray) -> Motion:
        q = self._q + velocity * STEP_SECONDS
        pose = self._kinematics.pose(q)
        free = self._kinematics.clear(pose)[:, None]
        self._q, self._flange = np.where(free, q, self._q), np.where(free, pose.flange, self._flange)
        return Motion(self._q, np.where(free, velocity, 0.0), self._flange)

    def show_target(self, target: np.ndarray) -> None:
        """Does nothing: there is no window."""

    def picture(self, target: np.ndarray) -> np.ndarray:
        """[H, W, 3] RGB uint8: the first arm and its target as lines, from the side and from above."""
        return draw_arm(self._kinematics, self._q[0], target)

    def close(self) -> None:
        """Does nothing: there is nothing to free."""
