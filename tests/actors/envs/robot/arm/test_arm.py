"""The arm: what its file says, and where its links are."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from actors.envs.robot.arm.kinematics import Kinematics
from actors.envs.robot.arm.urdf import file_digest, read_urdf
from tests.actors.envs.robot import arms
from tests.actors.playing import refusal

needs_pybullet = pytest.mark.skipif(
    find_spec("pybullet") is None, reason="pybullet is not installed: pip install 'headrace[robot]'"
)
BOX = '<collision><geometry><box size="0.1 0.1 0.3"/></geometry></collision>'
MESH = '<collision><geometry><mesh filename="{}"/></geometry></collision>'


def test_the_arm_is_the_datasheets() -> None:
    arm = read_urdf()
    assert arm.joints == ("J1", "J2", "J3", "J4", "J5", "J6")
    assert np.degrees(arm.lower).round(2).tolist() == [-170, -100, -70, -190, -125, -360]
    assert np.degrees(arm.upper).round(2).tolist() == [170, 145, 205, 190, 125, 360]
    assert np.degrees(arm.speed).round(2).tolist() == [450, 380, 520, 550, 545, 1000]
    assert arm.effort.tolist() == [500, 500, 200, 70, 40, 20]
    masses = [float(text.split('"')[1]) for text in arms.own_text().split("<mass value=")[1:]]
    assert math.isclose(sum(masses), 25.0, abs_tol=0.01)


def test_the_published_poses_are_met() -> None:
    kinematics = arms.own()
    assert np.allclose(kinematics.flange(np.zeros((1, 6))), [[0.465, 0, 0.695]], atol=1e-12)
    wrist = kinematics.pose(arms.joint_vectors(kinematics, 100_000)).joint[4]
    assert 0.7155 < np.hypot(wrist[:, 0], wrist[:, 1]).max() < 0.7170  # published: 717 mm
    stretched = np.array([[0, math.pi / 2, math.pi / 2 - math.atan(0.035 / 0.335), 0, 0, 0]])  # upper arm and wrist in one line
    assert np.allclose(kinematics.pose(stretched).joint[4][0, 0], 0.050 + 0.330 + math.hypot(0.335, 0.035), atol=1e-4)


@needs_pybullet
@pytest.mark.parametrize("text", [pytest.param(arms.own_text(), id="own"), pytest.param(arms.urdf(), id="odd")])
def test_pybullet_has_the_flange_in_the_same_place(text: str, tmp_path: Path) -> None:
    import pybullet

    kinematics = Kinematics(read_urdf(arms.written(tmp_path, text)))
    q = arms.joint_vectors(kinematics, 100)
    found = kinematics.flange(q)
    client = pybullet.connect(pybullet.DIRECT)
    try:
        body = pybullet.loadURDF(str(kinematics.arm.path), useFixedBase=True, physicsClientId=client)
        count = pybullet.getNumJoints(body, physicsClientId=client)
        names = [pybullet.getJointInfo(body, joint, physicsClientId=client)[1].decode() for joint in range(count)]
        for row, place in zip(q, found, strict=True):
            for name, angle in zip(kinematics.arm.joints, row, strict=True):
                pybullet.resetJointState(body, names.index(name), angle, physicsClientId=client)
            state = pybullet.getLinkState(body, count - 1, computeForwardKinematics=1, physicsClientId=client)
            assert np.allclose(state[4], place, atol=1e-6)
    finally:
        pybullet.disconnect(physicsClientId=client)


def test_the_jacobian_is_the_derivative() -> None:
    kinematics = arms.own()
    q = arms.joint_vectors(kinematics, 50)
    jacobian = kinematics.jacobian(kinematics.pose(q))
    for joint in range(6):
        ahead, behind = (kinematics.flange(q + sign * 1e-5 * np.eye(6)[joint]) for sign in (1, -1))
        assert np.allclose((ahead - behind) / 2e-5, jacobian[:, :, joint], atol=1e-8)


def test_an_arm_in_the_floor_or_in_itself_is_not_clear() -> None:
    kinematics = arms.own()
    folded = [0, 2.1, -1.0, 0, -0.4, 0]  # the wrist into the base
    q = np.array([np.zeros(6), [0, 2.4, 0, 0, 0, 0], folded])
    assert kinematics.clear(kinematics.pose(q)).tolist() == [True, False, False]
    pose = kinematics.pose(np.array([[0, 0, -0.9, 0, 0, 0]]))
    nearest = pose.points[0, 1:, 2].min()
    assert kinematics.clear(pose) and not kinematics.clear(pose, margin=float(nearest))


def test_shapes_are_covered_by_spheres(tmp_path: Path) -> None:
    arm = read_urdf(arms.written(tmp_path, arms.urdf(shape=BOX)))
    assert set(arm.link.tolist()) == {3} and np.allclose(arm.radius, 0.05)
    assert np.allclose(sorted(arm.centre[:, 2]), [-0.1, -0.05, 0, 0.05, 0.1])


def test_a_digest_is_the_files(tmp_path: Path) -> None:
    path = arms.written(tmp_path, arms.urdf())
    before = file_digest(path)
    assert read_urdf(path).digest == before != file_digest(arms.written(tmp_path, arms.urdf() + " "))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not <xml", "is not XML"),
        ("<model/>", "outermost element is <model>"),
        (arms.urdf(5), "has 5 revolute joints, the robot needs 6"),
        (arms.urdf(7), "has 7 revolute joints, the robot needs 6"),
        (arms.urdf(1), "has 1 revolute joint, the robot needs 6"),
        (arms.urdf(kind="prismatic"), "joint a0 is prismatic"),
        (arms.urdf(limit=""), "joint a0 has no limits: it needs <limit lower="),
        (arms.urdf(limit='<limit lower="-1" upper="1" effort="1"/>'), "joint a0 has no velocity"),
        (arms.urdf(limit='<limit lower="1" upper="1" velocity="1" effort="1"/>'), "below the upper one"),
        (arms.urdf(limit='<limit lower="-1" upper="1" velocity="0" effort="1"/>'), "velocity=…> above 0"),
        (arms.urdf(limit='<limit lower="-1" upper="1" velocity="fast" effort="1"/>'), "could not convert"),
        (arms.urdf(shape=MESH.format("package://odd/elbow.stl")), "'package://odd/elbow.stl', which does not exist"),
        (arms.urdf(shape=MESH.format("elbow.stl")), "needs the mesh 'elbow.stl'"),
        ('<robot><link name="a"/></robot>', "has no joints: there is no chain"),
        ('<robot><joint name="j" type="fixed"><parent link="a"/><child link="b"/></joint></robot>', "'a', which does not exist"),
    ],
)
def test_a_file_that_lacks_something_is_refused_with_what_it_lacks(text: str, words: str, tmp_path: Path) -> None:
    path = arms.written(tmp_path, text)
    told = refusal(read_urdf, path)
    assert words in told and str(path) in told


def test_a_mesh_beside_the_file_or_in_its_package_is_found(tmp_path: Path) -> None:
    (tmp_path / "odd" / "meshes").mkdir(parents=True)
    (tmp_path / "odd" / "meshes" / "elbow.stl").write_bytes(b"")
    for name in ("package://odd/meshes/elbow.stl", "meshes/elbow.stl"):
        assert len(read_urdf(arms.written(tmp_path / "odd", arms.urdf(shape=MESH.format(name)))).radius)
