"""Forward and inverse kinematics, Jacobian and collision checks for batches of joint vectors [N, 6]."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from actors.envs.robot.arm.urdf import JOINTS, Arm

DAMPING = 0.02  # metres: keeps the step small near singularities, where the arm is stretched
MAX_ROTATION = 0.3  # rad of one joint in one iteration
CLOSE_METRES = 5e-4


class Pose(NamedTuple):
    """flange: [N, 3] metres. joint: [6, N, 3] and axis: [6, N, 3], the positions and the unit axes of the joints. points:
    [N, P, 3], the centres of the collision spheres. All in the base's frame."""

    flange: np.ndarray
    joint: np.ndarray
    axis: np.ndarray
    points: np.ndarray


class Kinematics:
    """Forward kinematics of one arm, and which of its links are checked for collision."""

    def __init__(self, arm: Arm) -> None:
        self.arm = arm
        # A rotation by q about the unit axis k is k k' + cos q (1 - k k') + sin q [k]x (Rodrigues), after the joint's rotation.
        outer = arm.axis[:, :, None] * arm.axis[:, None, :]
        cross = np.cross(np.eye(3), arm.axis[:, None, :])  # row j: e_j x k, which is [k]x, as that is skew
        self._constant, self._cosine, self._sine = (arm.rotation @ part for part in (outer, np.eye(3) - outer, cross))
        order = np.argsort(arm.link, kind="stable")
        self.link, self.radius = arm.link[order], arm.radius[order]
        self._centres = [arm.centre[arm.link == number] for number in range(JOINTS + 1)]
        self._find_obstacles()

    def pose(self, q: np.ndarray, points: bool = True) -> Pose:
        """Forward kinematics of q [N, 6]. Without `points`, Pose.points is [N, 0, 3], which is faster."""
        count = len(q)
        turn = (
            self._constant + np.cos(q)[:, :, None, None] * self._cosine + np.sin(q)[:, :, None, None] * self._sine
        )  # [N, 6, 3, 3]
        joint, axis = np.empty((JOINTS, count, 3)), np.empty((JOINTS, count, 3))
        found = [np.broadcast_to(self._centres[0], (count, *self._centres[0].shape))] if points else []
        place, rotation = np.zeros((count, 3)), None
        for i in range(JOINTS):
            place = place + (self.arm.offset[i] if rotation is None else rotation @ self.arm.offset[i])
            rotation = turn[:, i] if rotation is None else rotation @ turn[:, i]
            joint[i], axis[i] = place, rotation @ self.arm.axis[i]
            if points and len(self._centres[i + 1]):
                found.append(place[:, None] + self._centres[i + 1] @ rotation.transpose(0, 2, 1))
        assert rotation is not None
        return Pose(place + rotation @ self.arm.tip, joint, axis, np.concatenate(found, 1) if points else np.empty((count, 0, 3)))

    def flange(self, q: np.ndarray) -> np.ndarray:
        """[N, 3] positions for q [N, 6]."""
        return self.pose(q, points=False).flange

    def jacobian(self, pose: Pose) -> np.ndarray:
        """[N, 3, 6]: the flange's velocity for each joint's velocity: axis x (flange - joint)."""
        return np.cross(pose.axis, pose.flange - pose.joint).transpose(1, 2, 0)

    def clear(self, pose: Pose, margin: float = 0.0) -> np.ndarray:
        """[N] bool: no checked link is within `margin` metres of the floor or of another checked link."""
        clear: np.ndarray = np.all(pose.points[:, self._over_floor, 2] > (self.radius + margin)[self._over_floor], axis=1)
        if len(self._left):
            apart = pose.points[:, self._left] - pose.points[:, self._right]
            clear &= np.all(np.einsum("npc,npc->np", apart, apart) > (self._reach + margin) ** 2, axis=1)
        return clear

    def _find_obstacles(self) -> None:
        """Chooses what `clear` checks: links against the floor, and pairs of links that are not neighbours. Links and pairs that
        touch at home are left out: their spheres are coarse."""
        points = self.pose(self.arm.home[None]).points[0]
        standing = {int(link) for link in self.link[points[:, 2] <= self.radius]} | {0}
        self.floor_links = tuple(link for link in range(JOINTS + 1) if link not in standing)
        self._over_floor = np.flatnonzero(np.isin(self.link, self.floor_links))
        left, right = np.nonzero(self.link[:, None] + 2 <= self.link)
        touching = np.linalg.norm(points[left] - points[right], axis=1) <= self.radius[left] + self.radius[right]
        excluded = set(zip(self.link[left[touching]].tolist(), self.link[right[touching]].tolist(), strict=True))
        kept = [pair not in excluded for pair in zip(self.link[left].tolist(), self.link[right].tolist(), strict=True)]
        self._left, self._right = left[kept], right[kept]
        self._reach = self.radius[self._left] + self.radius[self._right]
        # Pairs of links [(a, b), …] that are checked; all other pairs may touch.
        self.pairs = sorted(set(zip(self.link[self._left].tolist(), self.link[self._right].tolist(), strict=True)))


def solve(
    kinematics: Kinematics, start: np.ndarray, target: np.ndarray, iterations: int, margin: float
) -> tuple[np.ndarray, np.ndarray]:
    """Solves for joint vectors within limits that put the flange at target [N, 3], from starts [N, 6].

    Gives joint vectors [N, 6], and a bool [N] that says which of them are solutions: within half a millimetre of the target, and
    no link within `margin` metres of the floor or of another link, as far as Kinematics.clear() checks. Steps are
    J' (J J' + damping² 1)^-1 e (Wampler 1986, "Manipulator inverse kinematic solutions based on vector formulations and damped
    least-squares methods"), clipped at the joint limits.
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
