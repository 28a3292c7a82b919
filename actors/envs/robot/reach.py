"""Episodes of K arms that reach for targets, whatever moves them. Positions are in metres, in the base's frame.

An episode starts within 0.2 rad of home, at rest, in training as in evaluation. Actions are joint velocities, -1 to 1 of
SPEED_SHARE of the datasheet's speed, cut where they would lead beyond a joint's limit. One step is 1/24 s.

is_success: the flange is within the tolerance at this step. With the dense reward an episode terminates once the flange is
within the tolerance and slower than SLOW m/s, or has been within it for HOLD steps in a row. With the sparse reward it never
terminates, and what counts is where it ends. A time limit truncates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from actors.envs.base import Outcome, Simulators
from actors.envs.robot import rewards
from actors.envs.robot.arm.kinematics import Kinematics
from actors.envs.robot.arm.targets import TIERS
from actors.envs.robot.backends.motion import STEP_SECONDS, Arms
from actors.envs.robot.draws import Draws

SPEED_SHARE = 0.3
HOLD = 3
SLOW = 0.1  # m/s of the flange: 4 mm in a step
STEPS = {"dense": 100, "sparse": 50}
NEAR_METRES = 0.05  # the distance at which the flat form's last part is half of what it can become
OBSERVED, GOAL, FLAT = 24, 3, 36  # entries of the goal form's parts, and of the flat form


class ReachSimulators(Simulators):
    """K arms behind one step."""

    def __init__(
        self, kinematics: Kinematics, arms: Arms, draws: Draws, count: int, reward: str, flat: bool, max_steps: int
    ) -> None:
        """`max_steps` truncates an episode; 0: as STEPS says."""
        self._kinematics, self.arms, self._draws = kinematics, arms, draws
        self._reward, self._flat = reward, flat
        self._max_steps = max_steps or STEPS[reward]
        self._fastest = SPEED_SHARE * kinematics.arm.speed
        self._q, self._velocity, self._action = (np.zeros((count, 6)) for _ in range(3))
        self.flange, self.target = np.zeros((count, 3)), np.zeros((count, 3))
        self.tolerance, self.tier = np.zeros(count), np.zeros(count, np.int64)
        self.level = np.full(count, -1)  # of the curriculum that an episode is at
        self._steps, self._held = np.zeros(count, np.int64), np.zeros(count, np.int64)

    @property
    def levels(self) -> int:
        """Levels of the curriculum; 0 without one."""
        return len(self._draws.levels) if len(self._draws.levels) > 1 else 0

    def set_level(self, level: int) -> None:
        """For episodes that start from now on. Raises ValueError for a level that there is not."""
        self._draws.set_level(level)

    def reset(self, where: np.ndarray, seeds: Sequence[int | None]) -> dict[str, np.ndarray]:
        """Starts an episode of arms `where` [M]; a seed begins an arm's stream anew. Gives [M, …] by field name."""
        for k, seed in zip(where.tolist(), seeds, strict=True):
            self._draws.seed(k, seed)
        draw = self._draws.next(where)
        self._q[where], self._velocity[where], self._action[where] = draw.start, 0.0, 0.0
        self.flange[where] = self.arms.place(where, draw.start)
        self.target[where], self.tolerance[where] = draw.target, draw.tolerance
        self.tier[where], self.level[where] = draw.tier, draw.level
        self._steps[where] = self._held[where] = 0
        if 0 in where:
            self.arms.show_target(self.target[0])
        return self.observe(where)

    def aim(self, k: int, target: np.ndarray, tolerance: float, tier: int) -> None:
        """Gives arm k another target [3], one of no curriculum, in the episode that has just begun."""
        self.target[k], self.tolerance[k], self.tier[k], self.level[k] = target, tolerance, tier, -1
        self.arms.show_target(self.target[0])

    def step(self, actions: np.ndarray) -> Outcome:
        """Moves all arms by actions [K, 6]. Those whose episode ended must be reset before the next step."""
        arm = self._kinematics.arm
        self._action = np.clip(actions, -1.0, 1.0)
        least, most = (arm.lower - self._q) / STEP_SECONDS, (arm.upper - self._q) / STEP_SECONDS
        motion = self.arms.move(np.clip(self._action * self._fastest, np.minimum(least, 0.0), np.maximum(most, 0.0)))
        speed = np.linalg.norm(motion.flange - self.flange, axis=1) / STEP_SECONDS
        self._q, self._velocity, self.flange = motion
        apart = rewards.distance(self.flange, self.target)
        success = apart <= self.tolerance
        self._steps += 1
        self._held = np.where(success, self._held + 1, 0)
        terminated = success & ((speed < SLOW) | (self._held >= HOLD)) & (self._reward == "dense")
        truncated = ~terminated & (self._steps >= self._max_steps)
        gain = rewards.reward(self._reward, apart, self.tolerance)
        groups = [TIERS[tier] for tier in self.tier.tolist()]
        seen = self.observe(np.arange(len(apart)))
        return Outcome(seen, gain, terminated, truncated, apart, success, groups, self.level.copy())

    def observe(self, where: np.ndarray) -> dict[str, np.ndarray]:
        """What arms `where` [M] see, float32: the goal form's three parts, or one.

        observation [M, 24]: sin q, cos q, velocity as a share of the datasheet's, the action before; not the tolerance, so that a
        policy can be evaluated at another one than it was trained with. The flat form [M, 36] is that, where the flange is, where
        it is to go, how far that is along each axis, and the same squeezed so that centimetres show: x / (|x| + 5 cm), |x| being
        the distance.
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
        parts = (*own, flange, target, away, near)
        return {"observation": np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")}

    def close(self) -> None:
        """Frees what the arms hold."""
        self.arms.close()
