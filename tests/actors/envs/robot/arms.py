"""Arms for tests: the robot's own, and files that are nearly one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from actors.envs.robot.arm.kinematics import Kinematics
from actors.envs.robot.arm.urdf import OWN_URDF, read_urdf

LIMIT = '<limit lower="-2" upper="2.5" velocity="3" effort="50"/>'
INERTIA = '<inertial><mass value="1"/><inertia ixx="0.01" ixy="0" ixz="0" iyy="0.01" iyz="0" izz="0.01"/></inertial>'


def own() -> Kinematics:
    return Kinematics(read_urdf())


def joint_vectors(kinematics: Kinematics, count: int, seed: int = 0) -> np.ndarray:
    arm = kinematics.arm
    return np.random.default_rng(seed).uniform(arm.lower, arm.upper, (count, 6))


def urdf(joints: int = 6, limit: str = LIMIT, kind: str = "revolute", extra: str = "", shape: str = "") -> str:
    """An arm whose joints are turned and moved in all directions, with a fixed joint on either side of them."""
    links = "".join(f'<link name="l{i}">{INERTIA}{shape if i == 3 else ""}</link>' for i in range(joints + 1))
    text = f'<robot name="odd"><link name="world"/>{links}<link name="tool0"/>'
    text += (
        '<joint name="mount" type="fixed"><origin xyz="0.1 0 0.4" rpy="0 0 0.3"/><parent link="world"/><child link="l0"/></joint>'
    )
    for i in range(joints):
        text += (
            f'<joint name="a{i}" type="{kind}">'
            f'<origin xyz="{0.03 * i} {0.02 * (i % 2)} {0.2 - 0.02 * i}" rpy="{0.2 * i} -0.3 {0.1 * i}"/>'
            f'<parent link="l{i}"/><child link="l{i + 1}"/><axis xyz="{i % 2} {1 - i % 2} {0.5 * (i % 3)}"/>{limit}</joint>'
        )
    return (
        text + f'<joint name="end" type="fixed"><origin xyz="0 0.02 0.1" rpy="0.4 0 0"/><parent link="l{joints}"/>'
        f'<child link="tool0"/></joint>{extra}</robot>'
    )


def written(folder: Path, text: str) -> Path:
    path = folder / "arm.urdf"
    path.write_text(text)
    return path


def own_text() -> str:
    return OWN_URDF.read_text()
