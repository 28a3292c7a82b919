"""K arms without physics: joint velocities are integrated, for all arms at once."""

from __future__ import annotations

import numpy as np

from actors.envs.robot.arm.kinematics import Kinematics
from actors.envs.robot.backends.motion import STEP_SECONDS, Motion
from actors.envs.robot.picture import draw_arm


class KinematicArms:
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
