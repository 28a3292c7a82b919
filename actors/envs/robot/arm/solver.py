"""Inverse kinematics by damped least squares, for batches. It checks that targets are within reach."""

from __future__ import annotations

import numpy as np

from actors.envs.robot.arm.kinematics import Kinematics

DAMPING = 0.02  # metres: keeps the step small near singularities, where the arm is stretched
MAX_ROTATION = 0.3  # rad of one joint in one iteration
CLOSE_METRES = 5e-4


def solve(
    kinematics: Kinematics, start: np.ndarray, target: np.ndarray, iterations: int, margin: float
) -> tuple[np.ndarray, np.ndarray]:
    """Solves for joint vectors within limits that put the flange at target [N, 3], from starts [N, 6].

    Gives joint vectors [N, 6], and a bool [N] that says which of them are solutions: within half a millimetre of the target, and
    `margin` metres clear of the floor and of the arm itself. Steps are J' (J J' + damping² 1)^-1 e (Wampler 1986, "Manipulator
    inverse kinematic solutions based on vector formulations and damped least-squares methods"), clipped at the joint limits.
    """
    arm, q = kinematics.arm, np.array(start, np.float64)
    for _ in range(iterations):
        pose = kinematics.pose(q, points=False)
        error = target - pose.flange
        if (np.abs(error) < CLOSE_METRES / 4).all():
            break
        jacobian = kinematics.jacobian(pose)  # [N, 3, 6]
        square = jacobian @ jacobian.transpose(0, 2, 1) + DAMPING**2 * np.eye(3)
        rotation = (jacobian.transpose(0, 2, 1) @ np.linalg.solve(square, error[:, :, None]))[:, :, 0]
        q = np.clip(q + np.clip(rotation, -MAX_ROTATION, MAX_ROTATION), arm.lower, arm.upper)
    pose = kinematics.pose(q)
    return q, (np.linalg.norm(target - pose.flange, axis=1) < CLOSE_METRES) & kinematics.clear(pose, margin)
