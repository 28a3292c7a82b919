"""Targets: positions that an arm's flange can reach, sampled evenly over the workspace and cached by the arm's digest."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from actors.envs.robot.arm.kinematics import Kinematics, solve
from actors.errors import EnvError
from transport.files.writing import remove, replace
from transport.system import cache_folder

VERSION = 1  # of the cached file: raise it when the sampling changes
TARGETS = 100_000
SAMPLES = 3 * TARGETS  # positions to choose from
BATCH = 10_000
MOST_BATCHES = 1_000
VOXELS_PER_REACH = 12  # along the arm's reach: voxels of about 7 cm
LIMIT_MARGIN = 0.02  # rad between a target's joints and their limits
CLEARANCE = 0.01  # metres between a target's arm and the floor or itself
BASE_MARGIN = 0.03  # metres between a target and the base's cylinder
EVALUATION_SHARE = 0.1  # of the targets: training never uses them
TIERS = ("easy", "medium", "hard")
TIER_PERCENTILES = (33, 67)  # of the distance from the flange at home, over joint vectors as sampled
STARTS = 32  # joint vectors from which the solver tries to reach a given target
ITERATIONS = 60  # of the solver, from each start


class Targets(NamedTuple):
    """joints [N, 6] float32, and positions [N, 3] float32 of the flange at these joints, in random order. tier [N] is an index of
    TIERS; edges are the two distances from home, in metres, between tiers. The first `training` targets are for training, the
    others for evaluation."""

    joints: np.ndarray
    positions: np.ndarray
    tier: np.ndarray
    edges: tuple[float, float]

    @property
    def training(self) -> int:
        return len(self.tier) - round(EVALUATION_SHARE * len(self.tier))


def tier_of(distance: np.ndarray, edges: tuple[float, float]) -> np.ndarray:
    """[…] indices of TIERS, for distances from home […] in metres."""
    return np.searchsorted(edges, distance, side="right")


def load_targets(kinematics: Kinematics) -> Targets:
    """Reads the cache, or samples (which takes seconds) and writes the cache. Raises EnvError, as sample_targets does."""
    path = cache_folder() / f"targets-{kinematics.arm.digest}-v{VERSION}.npz"
    with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # missing or damaged: sample again
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            edges = file["edges"]
            cached = Targets(file["joints"], file["positions"], file["tier"], (float(edges[0]), float(edges[1])))
        if cached.joints.shape == (TARGETS, 6) and cached.positions.shape == (TARGETS, 3) and cached.tier.shape == (TARGETS,):
            return cached
    sampled = sample_targets(kinematics)
    with contextlib.suppress(OSError):  # with a full or read-only disk the next run samples again
        _write(path, sampled)
    return sampled


def sample_targets(kinematics: Kinematics, seed: int = 0) -> Targets:
    """The same targets for the same arm and seed. Raises EnvError for an arm that has hardly a pose without collision."""
    random = np.random.default_rng(seed)
    joints, positions = _sample(kinematics, random)
    distance = np.linalg.norm(positions - kinematics.flange(kinematics.arm.home[None]), axis=1)
    low, high = (float(edge) for edge in np.percentile(distance, TIER_PERCENTILES))
    chosen = _evenly(positions, random)
    return Targets(joints[chosen], positions[chosen], tier_of(distance[chosen], (low, high)).astype(np.int8), (low, high))


def _sample(kinematics: Kinematics, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """SAMPLES joint vectors, uniform within limits and without collision, and the flange's positions."""
    arm, kept, found = kinematics.arm, [], 0
    for batch in range(MOST_BATCHES):
        if found >= SAMPLES:
            break
        if batch >= 50 and found < batch * BATCH / 1_000:
            break
        q = random.uniform(arm.lower + LIMIT_MARGIN, arm.upper - LIMIT_MARGIN, (BATCH, 6)).astype(np.float32)
        pose = kinematics.pose(q.astype(np.float64))
        valid = kinematics.clear(pose, CLEARANCE) & _beyond_base(kinematics, pose.flange)
        kept.append((q[valid], pose.flange[valid].astype(np.float32)))
        found += int(valid.sum())
    if found < SAMPLES:
        raise EnvError(f"{arm.path}: in nearly all poses this arm touches the floor or itself ({found:,} others found)")
    return np.concatenate([q for q, _ in kept])[:SAMPLES], np.concatenate([flange for _, flange in kept])[:SAMPLES]


def _beyond_base(kinematics: Kinematics, flange: np.ndarray) -> np.ndarray:
    """[N] bool: above the floor, and outside the upright cylinder around the base link."""
    base = kinematics.link == 0
    centres, radius = kinematics.pose(kinematics.arm.home[None]).points[0][base], kinematics.radius[base]
    if not len(radius):
        return np.asarray(flange[:, 2] > CLEARANCE)
    wide = float((np.hypot(centres[:, 0], centres[:, 1]) + radius).max()) + BASE_MARGIN
    high = float((centres[:, 2] + radius).max()) + BASE_MARGIN
    return (flange[:, 2] > CLEARANCE) & ~((np.hypot(flange[:, 0], flange[:, 1]) < wide) & (flange[:, 2] < high))


def _evenly(positions: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """TARGETS indices in random order, each voxel with the same weight.

    Uniform joint vectors are dense where the arm is folded. Sampling without replacement with weights w takes the greatest
    log(u) / w (Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir").
    """
    size = float(np.abs(positions).max()) / VOXELS_PER_REACH
    cells = np.floor(positions / size).astype(np.int64) + 2 * VOXELS_PER_REACH
    flat = (cells @ np.array([1, 4 * VOXELS_PER_REACH, (4 * VOXELS_PER_REACH) ** 2])).astype(np.int64)
    _, voxel, count = np.unique(flat, return_inverse=True, return_counts=True)
    keys = np.log(random.random(len(positions))) * count[voxel]
    return random.permutation(np.argpartition(keys, -TARGETS)[-TARGETS:])


def check_reachable(kinematics: Kinematics, targets: Targets, position: np.ndarray) -> None:
    """Raises EnvError if the solver does not bring the flange to position [3] from any of the nearest known joint vectors."""
    if position.shape != (3,) or not np.isfinite(position).all():
        raise EnvError(f"a target is a position (x, y, z) in metres, not {position.tolist()}")
    distance = np.linalg.norm(targets.positions - position, axis=1)
    nearest = np.argpartition(distance, STARTS)[:STARTS]
    _, reached = solve(kinematics, targets.joints[nearest], np.tile(position, (STARTS, 1)), ITERATIONS, 0.0)
    if not (reached.any() and _beyond_base(kinematics, position[None])[0]):
        x, y, z = position
        raise EnvError(
            f"target ({x:g}, {y:g}, {z:g}) is out of reach of {kinematics.arm.name}: "
            f"the nearest position known to be reachable is {distance.min():.2f} m away"
        )


def _write(path: Path, targets: Targets) -> None:
    """Writes the file atomically: other processes may write it at the same time."""
    arrays: dict[str, Any] = {**targets._asdict(), "edges": np.array(targets.edges)}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)
        replace(Path(name), path)
    except BaseException:
        remove(Path(name))
        raise
