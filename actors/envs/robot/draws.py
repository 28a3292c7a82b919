"""What the next episodes of K arms are to be. Each arm draws from a stream of its own, which the others do not touch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from actors.envs.robot.arm.kinematics import Kinematics
from actors.envs.robot.arm.solver import solve
from actors.envs.robot.arm.targets import TIERS, Targets
from actors.envs.robot.curriculum import FULL_SHARE, Level, levels

AHEAD = 16  # episodes prepared at once: checking a batch costs little more than checking one
NOISE_METRES = 0.01  # a training target is moved by up to this along each axis
NOISE_ITERATIONS = 8
NOISE_CLEARANCE = 0.005  # metres; cached targets have twice that
START_NOISE = 0.2  # rad around home, each joint


class Draw(NamedTuple):
    """Of M episodes: where they start [M, 6], the target [M, 3], tolerance [M] in metres, tier [M] (index of TIERS) and level [M]
    of the curriculum, -1 for the full task."""

    start: np.ndarray
    target: np.ndarray
    tolerance: np.ndarray
    tier: np.ndarray
    level: np.ndarray


class Draws:
    """Targets and starts. In evaluation targets are those held out, unmoved, and always at the full task."""

    def __init__(
        self, kinematics: Kinematics, targets: Targets, task: Level, count: int, curriculum: bool, evaluation: bool
    ) -> None:
        """For `count` arms."""
        self._kinematics, self._targets, self._evaluation = kinematics, targets, evaluation
        self.levels = levels(task) if curriculum and not evaluation else (task,)
        self.level = 0
        self._pools = {level.tiers: self._pool(level.tiers) for level in self.levels}
        self._streams: list[np.random.Generator | None] = [None] * count
        self._taken = np.full(count, AHEAD)  # of what is prepared
        empty = ((count, AHEAD, 6), (count, AHEAD, 3), (count, AHEAD), (count, AHEAD), (count, AHEAD))
        self._prepared = Draw(*map(np.zeros, empty))

    def seed(self, k: int, seed: int | None) -> None:
        """Begins arm k's stream anew; None only where there is none yet, from the system's entropy."""
        if seed is not None or self._streams[k] is None:
            self._streams[k] = np.random.default_rng(seed)
            self._taken[k] = AHEAD

    def set_level(self, level: int) -> None:
        """For episodes drawn from now on. Raises ValueError for a level that there is not."""
        if not 0 <= level < len(self.levels):
            raise ValueError(f"level {level} of {len(self.levels)}")
        if level != self.level:
            self.level = level
            self._taken[:] = AHEAD

    def next(self, where: np.ndarray) -> Draw:
        """The next episode of each arm `where` [M]."""
        used = where[self._taken[where] == AHEAD]
        if len(used):
            self._prepare(used)
        place = self._taken[where]
        self._taken[where] += 1
        return Draw(*(part[where, place] for part in self._prepared))

    def _pool(self, tiers: Sequence[str]) -> np.ndarray:
        """Indices of the targets of these tiers that this mode may use."""
        training = self._targets.training
        split = slice(training, None) if self._evaluation else slice(training)
        chosen = np.isin(self._targets.tier[split], [TIERS.index(tier) for tier in tiers])
        return np.flatnonzero(chosen) + (training if self._evaluation else 0)

    def _prepare(self, where: np.ndarray) -> None:
        """AHEAD episodes for each arm `where` [M]."""
        luck = np.concatenate([self._stream(k).random((AHEAD, 11)) for k in where.tolist()])  # [M * AHEAD, 11]
        last, now = len(self.levels) - 1, self.level
        full = (luck[:, 0] < FULL_SHARE) | (now == last)
        index = np.where(full, self._pick(self.levels[last], luck[:, 1]), self._pick(self.levels[now], luck[:, 1]))
        drawn = Draw(
            self._starts(luck[:, 2:8]),
            self._moved(index, luck[:, 8:]),
            np.where(full, self.levels[last].tolerance, self.levels[now].tolerance),
            self._targets.tier[index],
            np.where(full, -1, now),
        )
        for kept, new in zip(self._prepared, drawn, strict=True):
            kept[where] = new.reshape(len(where), *kept.shape[1:])
        self._taken[where] = 0

    def _stream(self, k: int) -> np.random.Generator:
        stream = self._streams[k]
        assert stream is not None, "reset seeds a stream first"
        return stream

    def _pick(self, level: Level, luck: np.ndarray) -> np.ndarray:
        pool = self._pools[level.tiers]
        return pool[(luck * len(pool)).astype(np.int64)]

    def _starts(self, luck: np.ndarray) -> np.ndarray:
        """[M, 6] near home; at home where that would touch something."""
        arm = self._kinematics.arm
        start = np.clip(arm.home + (2 * luck - 1) * START_NOISE, arm.lower, arm.upper)
        fine = self._kinematics.clear(self._kinematics.pose(start), NOISE_CLEARANCE)
        return np.where(fine[:, None], start, arm.home)

    def _moved(self, index: np.ndarray, luck: np.ndarray) -> np.ndarray:
        """[M, 3] targets, moved a little where a joint vector is found for where they then are."""
        position = self._targets.positions[index].astype(np.float64)
        if self._evaluation:
            return position
        moved = position + (2 * luck - 1) * NOISE_METRES
        _, reached = solve(self._kinematics, self._targets.joints[index], moved, NOISE_ITERATIONS, NOISE_CLEARANCE)
        return np.where(reached[:, None], moved, position)
