"""Inverse kinematics by damped least squares, for whole batches: how a target is verified to be within reach."""

from __future__ import annotations

import numpy as np

from actors.envs.robot.arm.kinematics import Kinematics

DAMPING = 0.02  # metres: what keeps a step small where the arm is stretched
LONGEST_TURN = 0.3  # rad of one joint in one iteration
CLOSE_METRES = 5e-4


def solve(
    kinematics: Kinematics, start: np.ndarray, target: np.ndarray, iterations: int, margin: float
) -> tuple[np.ndarray, np.ndarray]:
    """Joint vectors [N, 6] within limits whose flange is at target [N, 3], from starts [N, 6], and whether each is one [N].

    Steps are J' (J J' + damping² 1)^-1 e (Wampler 1986, "Manipulator inverse kinematic solutions based on vector formulations and
    damped least-squares methods"), cut at the limits. A solution is within half a millimetre and keeps `margin` metres from the
    floor and from the arm itself.
    """
    arm, q = kinematics.arm, np.array(start, np.float64)
    for _ in range(iterations):
        pose = kinematics.pose(q, points=False)
        error = target - pose.flange
        if (np.abs(error) < CLOSE_METRES / 4).all():
            break
        jacobian = kinematics.jacobian(pose)  # [N, 3, 6]
        square = jacobian @ jacobian.transpose(0, 2, 1) + DAMPING**2 * np.eye(3)
        turn = (jacobian.transpose(0, 2, 1) @ np.linalg.solve(square, error[:, :, None]))[:, :, 0]
        q = np.clip(q + np.clip(turn, -LONGEST_TURN, LONGEST_TURN), arm.lower, arm.upper)
    pose = kinematics.pose(q)
    return q, (np.linalg.norm(target - pose.flange, axis=1) < CLOSE_METRES) & kinematics.clear(pose, margin)
