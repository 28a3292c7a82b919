"""Episodes of K arms that reach for targets, with either backend. Positions are in metres, in the base's frame.

An episode starts at rest within 0.2 rad of home, in training and in evaluation. Actions are joint velocities: -1 to 1 of
SPEED_SHARE of the datasheet's speed, clipped at the joint limits. One step is 1/24 s.

is_success: the flange is within the tolerance at this step. With the dense reward an episode terminates once the flange is
within the tolerance and slower than SLOW m/s, or has been within it for HOLD_STEPS steps in a row. With the sparse reward it
never terminates, and its last position counts. A time limit truncates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from actors.envs.base import Simulators, SimulatorStep
from actors.envs.robot import rewards
from actors.envs.robot.arm.kinematics import Kinematics
from actors.envs.robot.arm.targets import TIERS
from actors.envs.robot.backends.base import STEP_SECONDS, Arms
from actors.envs.robot.episodes import EpisodeSampler

SPEED_SHARE = 0.3
HOLD_STEPS = 3
SLOW = 0.1  # m/s of the flange: 4 mm in a step
STEPS = {"dense": 100, "sparse": 50}
NEAR_METRES = 0.05  # the distance at which the flat form's last part is half of its limit
OBSERVED, GOAL, FLAT = 24, 3, 38  # entries of the goal form's parts, and of the flat form


class ReachSimulators(Simulators):
    """K arms that one call steps."""

    def __init__(
        self, kinematics: Kinematics, arms: Arms, episodes: EpisodeSampler, count: int, reward: str, flat: bool, max_steps: int
    ) -> None:
        """`max_steps` truncates an episode; 0: the number in STEPS."""
        self._kinematics, self.arms, self._episodes = kinematics, arms, episodes
        self._reward, self._flat = reward, flat
        self._max_steps = max_steps or STEPS[reward]
        self._fastest = SPEED_SHARE * kinematics.arm.speed
        self._q, self._velocity, self._action = (np.zeros((count, 6)) for _ in range(3))
        self.flange, self.target = np.zeros((count, 3)), np.zeros((count, 3))
        self.tolerance, self.tier = np.zeros(count), np.zeros(count, np.int64)
        self.level = np.full(count, -1)  # [K] the curriculum's level of the current episode; -1: the full task
        self._steps, self._steps_within = np.zeros(count, np.int64), np.zeros(count, np.int64)

    @property
    def levels(self) -> int:
        return len(self._episodes.levels) if len(self._episodes.levels) > 1 else 0

    def set_level(self, level: int) -> None:
        self._episodes.set_level(level)

    def reset(self, where: np.ndarray, seeds: Sequence[int | None]) -> dict[str, np.ndarray]:
        for k, seed in zip(where.tolist(), seeds, strict=True):
            self._episodes.seed(k, seed)
        new = self._episodes.next(where)
        self._q[where], self._velocity[where], self._action[where] = new.start, 0.0, 0.0
        self.flange[where] = self.arms.place(where, new.start)
        self.target[where], self.tolerance[where] = new.target, new.tolerance
        self.tier[where], self.level[where] = new.tier, new.level
        self._steps[where] = self._steps_within[where] = 0
        if 0 in where:
            self.arms.show_target(self.target[0])
        return self.observe(where)

    def set_target(self, k: int, target: np.ndarray, tolerance: float, tier: int) -> None:
        """Replaces the target [3] of arm k, after its reset. The episode then belongs to no level of the curriculum."""
        self.target[k], self.tolerance[k], self.tier[k], self.level[k] = target, tolerance, tier, -1
        self.arms.show_target(self.target[0])

    def step(self, actions: np.ndarray) -> SimulatorStep:
        """Moves all arms by actions [K, 6]. Arms whose episode ended must be reset before the next step."""
        arm = self._kinematics.arm
        self._action = np.clip(actions, -1.0, 1.0)
        least, most = (arm.lower - self._q) / STEP_SECONDS, (arm.upper - self._q) / STEP_SECONDS
        motion = self.arms.move(np.clip(self._action * self._fastest, np.minimum(least, 0.0), np.maximum(most, 0.0)))
        speed = np.linalg.norm(motion.flange - self.flange, axis=1) / STEP_SECONDS
        self._q, self._velocity, self.flange = motion
        distance = rewards.distance(self.flange, self.target)
        success = distance <= self.tolerance
        self._steps += 1
        self._steps_within = np.where(success, self._steps_within + 1, 0)
        terminated = success & ((speed < SLOW) | (self._steps_within >= HOLD_STEPS)) & (self._reward == "dense")
        truncated = ~terminated & (self._steps >= self._max_steps)
        reward = rewards.reward(self._reward, distance, self.tolerance)
        groups = [TIERS[tier] for tier in self.tier.tolist()]
        observation = self.observe(np.arange(len(distance)))
        return SimulatorStep(observation, reward, terminated, truncated, distance, success, groups, self.level.copy())

    def observe(self, where: np.ndarray) -> dict[str, np.ndarray]:
        """The observations of arms `where` [M], float32: three parts in the goal form, one in the flat form.

        observation [M, 24]: sin q, cos q, velocity as a share of the datasheet's, the previous action. The tolerance is left out,
        so that a policy can be evaluated at another tolerance than it was trained with. The flat form [M, 38] appends the flange,
        the target, their difference x along each axis, x / (|x| + 5 cm), |x| being the distance, in which centimetres show; and
        the target's azimuth about the base, and how far the first joint is from it, both in rad. For a target
        behind the arm the sign of a small y decides which way to turn, which a network learns slowly from x and y alone.
        """
        q, flange, target = self._q[where], self.flange[where], self.target[where]
        share = self._velocity[where] / self._kinematics.arm.speed
        own = (np.sin(q), np.cos(q), share, self._action[where])
        if not self._flat:
            observation = np.concatenate(own, axis=1, dtype=np.float32, casting="same_kind")
            achieved, desired = flange.astype(np.float32), target.astype(np.float32)
            return {"achieved_goal": achieved, "desired_goal": desired, "observation": observation}
        away = target - flange
        near = away / (np.linalg.norm(away, axis=1, keepdims=True) + NEAR_METRES)
        azimuth = np.arctan2(target[:, 1], target[:, 0])
        parts = (*own, flange, target, away, near, np.stack([azimuth, azimuth - q[:, 0]], axis=1))
        return {"observation": np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")}

    def close(self) -> None:
        self.arms.close()
