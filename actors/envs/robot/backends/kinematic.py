"""K arms without physics: joint velocities integrated, for whole batches at once."""

from __future__ import annotations

import numpy as np

from actors.envs.robot.arm.kinematics import Kinematics
from actors.envs.robot.backends.motion import STEP_SECONDS, Motion
from actors.envs.robot.picture import draw_arm


class KinematicArms:
    """Joints that follow at once. A step that would bring a link into the floor or into the arm itself does not happen."""

    def __init__(self, kinematics: Kinematics, count: int) -> None:
        """`place` puts the arms somewhere."""
        self._kinematics = kinematics
        self._q, self._flange = np.zeros((count, 6)), np.zeros((count, 3))

    def place(self, where: np.ndarray, q: np.ndarray) -> np.ndarray:
        """Puts arms `where` [M] at q [M, 6], at rest. Gives their flanges [M, 3]."""
        self._q[where] = q
        self._flange[where] = self._kinematics.flange(q)
        return self._flange[where]

    def move(self, velocity: np.ndarray) -> Motion:
        """Turns the joints at velocity [K, 6] rad/s for a step."""
        q = self._q + velocity * STEP_SECONDS
        pose = self._kinematics.pose(q)
        free = self._kinematics.clear(pose)[:, None]
        self._q, self._flange = np.where(free, q, self._q), np.where(free, pose.flange, self._flange)
        return Motion(self._q, np.where(free, velocity, 0.0), self._flange)

    def show_target(self, target: np.ndarray) -> None:
        """Nobody watches."""

    def picture(self, target: np.ndarray) -> np.ndarray:
        """[H, W, 3] RGB uint8: the first arm and its target as lines, from the side and from above."""
        return draw_arm(self._kinematics, self._q[0], target)

    def close(self) -> None:
        """There is nothing to free."""
