"""K arms in one PyBullet world, with motors, masses and contacts. The only file that imports pybullet.

Arms are loaded once per client, because loading again leaks memory. Each call names its client: PyBullet's default is the first
client of the process. Positions come from kinematics.py, because getLinkState is slow and one step late.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
import time
from typing import Any

import numpy as np

from actors.envs.robot.arm.kinematics import Kinematics
from actors.envs.robot.backends.base import SHOWN_PER_SECOND, STEP_SECONDS, Arms, Motion
from actors.errors import EnvError

SUBSTEPS = 10  # 240 per second; with half as many an arm that presses on the floor sinks in
SOLVER_ITERATIONS = 50  # with 10 an arm that presses on the floor sinks in; for the motors alone fewer would do, at the same cost
SPACING = 3.0  # distance between two arms, in units of their reach
PICTURE = (480, 640)  # height, width
TARGET_RADIUS = 0.02


def import_quietly() -> Any:
    """The module. When it is imported, it prints when it was built."""
    if "pybullet" in sys.modules:
        return sys.modules["pybullet"]
    sys.stdout.flush()
    sys.stderr.flush()
    nowhere, own = os.open(os.devnull, os.O_WRONLY), [os.dup(number) for number in (1, 2)]
    for number in (1, 2):
        os.dup2(nowhere, number)
    try:
        import pybullet
    finally:
        with contextlib.suppress(OSError, TypeError):  # Windows has no CDLL(None)
            ctypes.CDLL(None).fflush(None)  # the line may lie in the C library's buffer
        for number, before in zip((1, 2), own, strict=True):
            os.dup2(before, number)
            os.close(before)
        os.close(nowhere)
    return pybullet


class BulletArms(Arms):
    """Arms with velocity motors, whose effort is limited to the datasheet's."""

    def __init__(self, kinematics: Kinematics, count: int, window: bool = False) -> None:
        """Loads `count` arms. `window` shows them, slowed down. Raises EnvError for a file that PyBullet cannot read."""
        pybullet = self._bullet = import_quietly()
        self._kinematics, self._count, self._window = kinematics, count, window
        self.client = pybullet.connect(pybullet.GUI if window else pybullet.DIRECT)
        if self.client < 0:
            raise EnvError("PyBullet could not open a window: is there a display?")
        self._marker: int | None = None
        self._due = time.monotonic()
        try:
            self._load()
        except pybullet.error as error:
            self.close()
            raise EnvError(f"{kinematics.arm.path}: PyBullet cannot load it: {error}") from error

    def _load(self) -> None:
        bullet, client, arm = self._bullet, self.client, self._kinematics.arm
        bullet.configureDebugVisualizer(bullet.COV_ENABLE_RENDERING, 0, physicsClientId=client)
        bullet.setGravity(0, 0, -9.81, physicsClientId=client)
        bullet.setPhysicsEngineParameter(
            fixedTimeStep=STEP_SECONDS,
            numSubSteps=SUBSTEPS,
            numSolverIterations=SOLVER_ITERATIONS,
            enableFileCaching=1,
            physicsClientId=client,
        )
        floor = bullet.createCollisionShape(bullet.GEOM_PLANE, physicsClientId=client)
        self._floor = bullet.createMultiBody(0, floor, physicsClientId=client)
        flags = (
            bullet.URDF_USE_INERTIA_FROM_FILE
            | bullet.URDF_USE_SELF_COLLISION
            | bullet.URDF_USE_SELF_COLLISION_EXCLUDE_PARENT
            | bullet.URDF_ENABLE_CACHED_GRAPHICS_SHAPES
        )
        reach = float(np.abs(arm.offset).sum() + np.abs(arm.tip).sum())
        across = math.ceil(math.sqrt(self._count))
        self._bodies = []
        for k in range(self._count):
            place = (SPACING * reach * (k % across), SPACING * reach * (k // across), 0)
            body = bullet.loadURDF(str(arm.path), place, useFixedBase=True, flags=flags, physicsClientId=client)
            self._bodies.append(body)
        self._name_joints()
        for body in self._bodies:
            self._allow_contacts(body)
        self._effort = arm.effort.tolist()
        bullet.configureDebugVisualizer(bullet.COV_ENABLE_RENDERING, 1, physicsClientId=client)

    def _name_joints(self) -> None:
        """Maps our joints to PyBullet's, and each of PyBullet's links to the link of ours that it moves with."""
        bullet, first, arm = self._bullet, self._bodies[0], self._kinematics.arm
        count = bullet.getNumJoints(first, physicsClientId=self.client)
        entries = [bullet.getJointInfo(first, joint, physicsClientId=self.client) for joint in range(count)]
        index = {entry[1].decode(): entry[0] for entry in entries}
        self._joints = [index[name] for name in arm.joints]
        self._number = {-1: 0}  # PyBullet's link (numbered as the joint whose child it is) -> our link
        for entry in entries:
            own = self._joints.index(entry[0]) + 1 if entry[0] in self._joints else None
            self._number[entry[0]] = self._number[entry[16]] if own is None else own

    def _allow_contacts(self, body: int) -> None:
        """Allows the same contacts as kinematics.py, and removes PyBullet's default damping."""
        bullet, client = self._bullet, self.client
        pairs, floor = set(self._kinematics.pairs), self._kinematics.floor_links
        for a, of_a in self._number.items():
            if of_a not in floor:
                bullet.setCollisionFilterPair(self._floor, body, -1, a, 0, physicsClientId=client)
            for b, of_b in self._number.items():
                if a < b and (min(of_a, of_b), max(of_a, of_b)) not in pairs:
                    bullet.setCollisionFilterPair(body, body, a, b, 0, physicsClientId=client)
            bullet.changeDynamics(body, a, linearDamping=0, angularDamping=0, physicsClientId=client)

    def place(self, where: np.ndarray, q: np.ndarray) -> np.ndarray:
        """Puts arms `where` [M] at q [M, 6], at rest. Gives the flanges [M, 3].

        The motors are set to 0 as well: resetJointState leaves them as they are.
        """
        for k, angles in zip(where.tolist(), q.tolist(), strict=True):
            for joint, angle in zip(self._joints, angles, strict=True):
                self._bullet.resetJointState(self._bodies[k], joint, angle, 0.0, physicsClientId=self.client)
            self._drive(k, [0.0] * len(self._joints))
        return self._kinematics.flange(q)

    def move(self, velocity: np.ndarray) -> Motion:
        """Drives the joints at velocity [K, 6] rad/s for one step."""
        for k, speeds in enumerate(velocity.tolist()):
            self._drive(k, speeds)
        self._bullet.stepSimulation(physicsClientId=self.client)
        read, client = self._bullet.getJointStates, self.client
        states = [[entry[:2] for entry in read(body, self._joints, physicsClientId=client)] for body in self._bodies]
        measured = np.array(states)  # [K, 6, (position, velocity)]
        q = np.ascontiguousarray(measured[:, :, 0])
        if self._window:
            self._keep_time()
        return Motion(q, measured[:, :, 1], self._kinematics.flange(q))

    def _drive(self, k: int, speeds: list[float]) -> None:
        self._bullet.setJointMotorControlArray(
            self._bodies[k],
            self._joints,
            self._bullet.VELOCITY_CONTROL,
            targetVelocities=speeds,
            forces=self._effort,
            physicsClientId=self.client,
        )

    def _keep_time(self) -> None:
        """Waits until the next step is to be shown."""
        shown_seconds = 1 / SHOWN_PER_SECOND
        self._due = max(self._due + shown_seconds, time.monotonic() - shown_seconds)
        time.sleep(max(self._due - time.monotonic(), 0.0))

    def show_target(self, target: np.ndarray) -> None:
        """Shows the target of the first arm as a ball, if there is a window."""
        if self._window:
            self._put_ball(target)

    def _put_ball(self, target: np.ndarray) -> None:
        """Moves the ball, which has no collision shape."""
        bullet, client = self._bullet, self.client
        if self._marker is None:
            ball = bullet.createVisualShape(
                bullet.GEOM_SPHERE, TARGET_RADIUS, rgbaColor=(0.9, 0.1, 0.1, 1), physicsClientId=client
            )
            self._marker = bullet.createMultiBody(0, -1, ball, target.tolist(), physicsClientId=client)
        bullet.resetBasePositionAndOrientation(self._marker, target.tolist(), (0, 0, 0, 1), physicsClientId=client)

    def picture(self, target: np.ndarray) -> np.ndarray:
        """[H, W, 3] RGB uint8: the first arm and its target, rendered on the CPU."""
        bullet, client = self._bullet, self.client
        self._put_ball(target)
        reach = float(np.abs(self._kinematics.arm.offset).sum() + np.abs(self._kinematics.arm.tip).sum())
        height, width = PICTURE
        view = bullet.computeViewMatrixFromYawPitchRoll((0, 0, 0.3 * reach), 1.35 * reach, 50, -25, 0, 2, physicsClientId=client)
        lens = bullet.computeProjectionMatrixFOV(50, width / height, 0.1, 10 * reach, physicsClientId=client)
        drawn = bullet.getCameraImage(
            width, height, view, lens, renderer=bullet.ER_TINY_RENDERER, shadow=0, physicsClientId=client
        )
        return np.ascontiguousarray(np.reshape(drawn[2], (height, width, 4))[:, :, :3].astype(np.uint8))

    def close(self) -> None:
        """Disconnects. A second call does nothing."""
        if self.client >= 0:
            self._bullet.disconnect(physicsClientId=self.client)
            self.client = -1
