"""Samples the episodes of K arms: start, target, tolerance, by the levels of the curriculum. Each arm has its own random
generator, so that what one arm samples does not depend on the others.

The curriculum leads from easy targets to the configured task. A level is an index of `levels(task)`; the last one is that
task. The supervisor decides when to raise the level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from actors.envs.robot.arm.kinematics import Kinematics, solve
from actors.envs.robot.arm.targets import TIERS, Targets

AHEAD = 16  # episodes sampled at once: checking a batch costs little more than checking one
NOISE_METRES = 0.01  # a training target is moved by up to this along each axis
NOISE_ITERATIONS = 8
NOISE_CLEARANCE = 0.005  # metres; cached targets have twice that
START_NOISE = 0.2  # rad around home, each joint
UNIFORMS = 11  # random numbers of an episode: 1 full task or not, 1 target, 6 start, 3 target noise
FULL_SHARE = 0.2  # of the episodes of every level play the full task, so that the policy keeps practising it


class Level(NamedTuple):
    """The tiers that targets are sampled from, and the tolerance in metres."""

    tiers: tuple[str, ...]
    tolerance: float


# First the tiers are added at a tolerance of 10 cm; then the tolerance falls to 5, 2, 1 and 0.5 cm.
LEVELS = (
    Level(("easy",), 0.10),
    Level(("easy", "medium"), 0.10),
    Level(TIERS, 0.10),
    Level(TIERS, 0.05),
    Level(TIERS, 0.02),
    Level(TIERS, 0.01),
    Level(TIERS, 0.005),
)


def full_task(tier: str, tolerance: float) -> Level:
    return Level(TIERS if tier == "all" else (tier,), tolerance)


def levels(task: Level) -> tuple[Level, ...]:
    """The levels for a task: those of LEVELS with a larger tolerance, restricted to the task's tiers; last the task itself."""
    chosen: list[Level] = []
    for level in LEVELS:
        tiers = tuple(tier for tier in task.tiers if tier in level.tiers) or task.tiers
        step = Level(tiers, level.tolerance)
        if level.tolerance > task.tolerance and step not in chosen:
            chosen.append(step)
    return (*chosen, task)


class Episodes(NamedTuple):
    """M episodes: start [M, 6] rad, target [M, 3] metres, tolerance [M] metres, tier [M] (index of TIERS) and level [M] of the
    curriculum, -1 for the full task."""

    start: np.ndarray
    target: np.ndarray
    tolerance: np.ndarray
    tier: np.ndarray
    level: np.ndarray


class EpisodeSampler:
    """Samples targets and starts. Evaluation uses the evaluation targets, without noise, and always the full task."""

    def __init__(
        self, kinematics: Kinematics, targets: Targets, task: Level, count: int, curriculum: bool, evaluation: bool
    ) -> None:
        self._kinematics, self._targets, self._evaluation = kinematics, targets, evaluation
        self.levels = levels(task) if curriculum and not evaluation else (task,)
        self.level = 0
        self._pools = {level.tiers: self._pool(level.tiers) for level in self.levels}
        self._generators: list[np.random.Generator | None] = [None] * count
        self._used = np.full(count, AHEAD)  # [K] how many of the buffered episodes have been returned
        empty = ((count, AHEAD, 6), (count, AHEAD, 3), (count, AHEAD), (count, AHEAD), (count, AHEAD))
        self._buffer = Episodes(*map(np.zeros, empty))  # [K, AHEAD, …]

    def seed(self, k: int, seed: int | None) -> None:
        """Seeds the generator of arm k. None keeps the generator; the first one then takes the system's entropy."""
        if seed is not None or self._generators[k] is None:
            self._generators[k] = np.random.default_rng(seed)
            self._used[k] = AHEAD

    def set_level(self, level: int) -> None:
        """Sets the level of the episodes sampled from now on. Raises ValueError for a level that does not exist."""
        if not 0 <= level < len(self.levels):
            raise ValueError(f"level {level} of {len(self.levels)}")
        if level != self.level:
            self.level = level
            self._used[:] = AHEAD

    def next(self, where: np.ndarray) -> Episodes:
        """The next episode of each arm `where` [M]."""
        empty = where[self._used[where] == AHEAD]
        if len(empty):
            self._refill(empty)
        place = self._used[where]
        self._used[where] += 1
        return Episodes(*(part[where, place] for part in self._buffer))

    def _pool(self, tiers: Sequence[str]) -> np.ndarray:
        """Indices of the training (or evaluation) targets of these tiers."""
        training = self._targets.training
        split = slice(training, None) if self._evaluation else slice(training)
        chosen = np.isin(self._targets.tier[split], [TIERS.index(tier) for tier in tiers])
        return np.flatnonzero(chosen) + (training if self._evaluation else 0)

    def _refill(self, where: np.ndarray) -> None:
        """Samples AHEAD episodes for each arm `where` [M]."""
        uniform = np.concatenate([self._generator(k).random((AHEAD, UNIFORMS)) for k in where.tolist()])  # [M * AHEAD, 11]
        last, now = len(self.levels) - 1, self.level
        full = (uniform[:, 0] < FULL_SHARE) | (now == last)
        index = np.where(full, self._choose(self.levels[last], uniform[:, 1]), self._choose(self.levels[now], uniform[:, 1]))
        sampled = Episodes(
            self._starts(uniform[:, 2:8]),
            self._target_positions(index, uniform[:, 8:]),
            np.where(full, self.levels[last].tolerance, self.levels[now].tolerance),
            self._targets.tier[index],
            np.where(full, -1, now),
        )
        for buffer, new in zip(self._buffer, sampled, strict=True):
            buffer[where] = new.reshape(len(where), *buffer.shape[1:])
        self._used[where] = 0

    def _generator(self, k: int) -> np.random.Generator:
        generator = self._generators[k]
        assert generator is not None, "seed() comes first"
        return generator

    def _choose(self, level: Level, uniform: np.ndarray) -> np.ndarray:
        """[M] indices of targets of the level."""
        pool = self._pools[level.tiers]
        return pool[(uniform * len(pool)).astype(np.int64)]

    def _starts(self, uniform: np.ndarray) -> np.ndarray:
        """[M, 6] joint vectors near home, or home itself where the sampled one collides."""
        arm = self._kinematics.arm
        start = np.clip(arm.home + (2 * uniform - 1) * START_NOISE, arm.lower, arm.upper)
        clear = self._kinematics.clear(self._kinematics.pose(start), NOISE_CLEARANCE)
        return np.where(clear[:, None], start, arm.home)

    def _target_positions(self, index: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """[M, 3] positions of targets. Training adds noise to a target where the solver still reaches the noisy position."""
        position = self._targets.positions[index].astype(np.float64)
        if self._evaluation:
            return position
        noisy = position + (2 * uniform - 1) * NOISE_METRES
        _, reached = solve(self._kinematics, self._targets.joints[index], noisy, NOISE_ITERATIONS, NOISE_CLEARANCE)
        return np.where(reached[:, None], noisy, position)
