"""Targets: all within reach, evenly distributed, by tier, and cached."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from actors.envs.robot.arm import targets as module
from actors.envs.robot.arm.kinematics import Kinematics
from actors.envs.robot.arm.targets import Targets, check_reachable, load_targets, sample_targets, tier_of
from actors.envs.robot.arm.urdf import read_urdf
from actors.errors import EnvError
from tests.actors.envs.robot import arms

pytestmark = pytest.mark.xdist_group("the targets of the robot")  # one worker samples them
needs_pybullet = pytest.mark.skipif(
    find_spec("pybullet") is None, reason="pybullet is not installed: pip install 'headrace[robot]'"
)
KINEMATICS = arms.own()
CLOSE_METRES = 0.002  # how near PyBullet's solver comes even where the arm is stretched and it converges slowly


@cache
def the_targets() -> Targets:
    return load_targets(KINEMATICS)


def test_every_target_is_where_its_joints_put_the_flange_clear_and_within_limits() -> None:
    targets, arm = the_targets(), KINEMATICS.arm
    assert targets.positions.shape == (100_000, 3) and targets.training == 90_000
    assert (targets.joints > arm.lower).all() and (targets.joints < arm.upper).all()
    sample = slice(None, None, 10)
    pose = KINEMATICS.pose(targets.joints[sample].astype(np.float64))
    assert np.allclose(pose.flange, targets.positions[sample], atol=1e-6)
    assert KINEMATICS.clear(pose, 0.99 * module.CLEARANCE).all() and (targets.positions[:, 2] > 0).all()
    low = targets.positions[:, 2] < 0.18  # beside the base, not in it
    assert np.hypot(*targets.positions[low, :2].T).min() > 0.095


@pytest.mark.slow
@needs_pybullet
def test_an_independent_solver_reaches_every_target_within_the_joints_limits() -> None:
    import pybullet

    targets, arm = the_targets(), KINEMATICS.arm
    random = np.random.default_rng(7)
    chosen = random.choice(len(targets.positions), 400, replace=False)
    client = pybullet.connect(pybullet.DIRECT)
    try:
        body = pybullet.loadURDF(str(arm.path), useFixedBase=True, physicsClientId=client)
        missed = [index for index in chosen if not solved(pybullet, client, body, targets.positions[index], random)]
    finally:
        pybullet.disconnect(physicsClientId=client)
    assert missed == []


def solved(pybullet, client: int, body: int, position: np.ndarray, random: np.random.Generator) -> bool:  # type: ignore[no-untyped-def]
    """From home, then from the nearer of many random poses, never from the joints that are stored with the target.

    What leaves the limits is cut, and tried on.
    """
    arm, flange = KINEMATICS.arm, 6
    starts = random.uniform(arm.lower, arm.upper, (2_000, 6))
    nearer = np.linalg.norm(KINEMATICS.flange(starts) - position, axis=1).argsort()[:40]
    for start in [np.zeros(6), *starts[nearer]]:
        q = start
        for _ in range(12):
            for joint, angle in enumerate(q):
                pybullet.resetJointState(body, joint, angle, physicsClientId=client)
            state = pybullet.getLinkState(body, flange, computeForwardKinematics=1, physicsClientId=client)
            if np.linalg.norm(np.array(state[4]) - position) < CLOSE_METRES:
                return True  # q is within limits: it was drawn or cut so
            found = pybullet.calculateInverseKinematics(
                body, flange, position.tolist(), maxNumIterations=100, residualThreshold=1e-5, physicsClientId=client
            )
            q = np.clip(found, arm.lower, arm.upper)
    return False


def test_the_workspace_is_covered_more_evenly_than_by_uniform_joints() -> None:
    def spread(positions: np.ndarray) -> float:
        _, count = np.unique(np.floor(positions / 0.1), axis=0, return_counts=True)
        inner = count[count > count.mean() / 4]  # not the voxels that the workspace only touches
        return float(inner.std() / inner.mean())

    q = arms.joint_vectors(KINEMATICS, 150_000)
    uniform = KINEMATICS.flange(q)[KINEMATICS.flange(q)[:, 2] > 0][:100_000]
    assert spread(the_targets().positions) < 0.6 * spread(uniform)


@pytest.mark.slow
def test_tiers_part_at_the_percentiles_that_are_published_for_this_arm() -> None:
    targets = the_targets()
    assert targets.edges == pytest.approx((0.524, 0.755), abs=0.01)
    apart = np.linalg.norm(targets.positions - [0.465, 0, 0.695], axis=1)
    assert np.array_equal(tier_of(apart, targets.edges), targets.tier)
    assert set(targets.tier.tolist()) == {0, 1, 2}


def test_targets_come_from_the_cache_and_a_damaged_one_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = the_targets()  # before the cache and the sampling are others
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    samplings = []

    def sampled(kinematics: Kinematics) -> Targets:
        samplings.append(kinematics.arm.digest)
        return known

    monkeypatch.setattr(module, "sample_targets", sampled)
    for _ in range(2):
        loaded = load_targets(KINEMATICS)
    assert len(samplings) == 1 and np.array_equal(loaded.positions, known.positions) and loaded.edges == known.edges
    (path,) = tmp_path.iterdir()
    assert KINEMATICS.arm.digest in path.name
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole[:5_000] + b"\xff" * 999 + whole[5_999:]):
        path.write_bytes(damaged)
        assert np.array_equal(load_targets(KINEMATICS).positions, known.positions)
        assert path.read_bytes()[:5_000] == whole[:5_000] and len(list(tmp_path.iterdir())) == 1
    assert len(samplings) == 4


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = the_targets()  # before the cache and the sampling are others
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(module, "sample_targets", lambda kinematics: known)
    assert load_targets(KINEMATICS) is known


def test_the_cache_lies_where_caches_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert module.cache_folder() == tmp_path / "headrace"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert module.cache_folder() == Path.home() / ".cache" / "headrace"


def test_sampling_is_repeatable_and_another_arm_has_other_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TARGETS", 500)
    monkeypatch.setattr(module, "SAMPLES", 1_500)
    once, again = sample_targets(KINEMATICS), sample_targets(KINEMATICS)
    assert np.array_equal(once.positions, again.positions)
    odd = Kinematics(read_urdf(arms.written(tmp_path, arms.urdf())))
    assert not np.allclose(sample_targets(odd).positions.mean(0), once.positions.mean(0), atol=0.02)


def test_an_arm_that_cannot_move_clear_of_the_floor_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 1_000)
    sunk = arms.own_text().replace('xyz="0 0 0.330"', 'xyz="0 0 -3.0"', 1)
    with pytest.raises(EnvError, match="in nearly all poses this arm touches"):
        sample_targets(Kinematics(read_urdf(arms.written(tmp_path, sunk))))


@pytest.mark.parametrize("position", [(0.5, 0.2, 0.5), (0.3, -0.3, 0.05), (-0.4, 0.1, 0.6), (0, 0.5, 0.9)])
def test_an_explicit_target_within_reach_is_taken(position: tuple[float, ...]) -> None:
    check_reachable(KINEMATICS, the_targets(), np.array(position))


@pytest.mark.parametrize("position", [(2, 0, 0.5), (0, 0, 0.1), (0.5, 0, -0.2), (0, 0, 1.2), (0.85, 0, 0.4)])
def test_a_target_out_of_reach_is_refused_in_one_line(position: tuple[float, ...]) -> None:
    with pytest.raises(EnvError, match=r"^target \(.*\) is out of reach of lr_mate_200id: the nearest position known .* m away$"):
        check_reachable(KINEMATICS, the_targets(), np.array(position))


def test_what_is_no_position_is_refused() -> None:
    for position in ([0.5, 0.2], [0.5, 0.2, np.nan]):
        with pytest.raises(EnvError, match=r"a target is a position \(x, y, z\)"):
            check_reachable(KINEMATICS, the_targets(), np.array(position))
