"""Hindsight: what a row would have earned, had it been after a goal that its episode achieved later.

Andrychowicz et al. 2017 (arXiv:1707.01495, section 4.5), strategy "future". The reward function is the environment's, so goals
are drawn here and not where they are learned from; no row is duplicated, the k goals and their rewards are columns of it.
"""

from __future__ import annotations

import numpy as np

from actors.envs.base import ComputeReward
from actors.envs.errors import EnvError
from learner.algorithms.hindsight import HINDSIGHT_GOAL, HINDSIGHT_REWARD
from transport.experience import ACHIEVED_GOAL, DESIRED_GOAL, Columns, ExperienceSpec

WITHOUT = "--algorithm.hindsight 0 goes without"
TOLERANCE = 1e-4  # rewards of goals that rest as float32 beside rewards of goals in float64


class GoalReward:
    """The reward of reaching `achieved` when `desired` was the goal, for many at once, by a family's `compute_reward`."""

    def __init__(self, compute: ComputeReward | None) -> None:
        """Raises EnvError where there is none."""
        if compute is None:
            raise EnvError(f"hindsight needs an environment that has compute_reward; {WITHOUT}")
        self._compute = compute

    def __call__(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """[N, *shape] each -> [N] float32. Raises EnvError for an answer of another shape, or none."""
        try:
            reward = np.asarray(self._compute(achieved, desired, {}), np.float32)
        except Exception as error:  # whatever it raises is its user's to read, in one line
            message = " ".join(str(error).split())
            raise EnvError(f"compute_reward of {len(achieved)} goals: {type(error).__name__}: {message}; {WITHOUT}") from error
        if reward.shape != (len(achieved),):
            raise EnvError(
                f"compute_reward of {len(achieved)} goals gave shape {reward.shape}, not {(len(achieved),)}: hindsight needs one "
                f"reward for each; {WITHOUT}"
            )
        return reward

    def check(self, achieved: np.ndarray, desired: np.ndarray, reward: np.ndarray) -> None:
        """Raises EnvError unless steps that ended in `achieved` [N, *shape] under `desired` gave just these rewards [N]."""
        computed = self(achieved, desired)
        for was, told in zip(reward.tolist(), computed.tolist(), strict=True):
            if not abs(was - told) <= TOLERANCE * max(1.0, abs(was)):
                raise EnvError(
                    f"compute_reward tells {told:g} of a step that gave {was:g}, so hindsight would teach other rewards: "
                    f"it must depend on the goals alone; {WITHOUT}"
                )


class Hindsight:
    """Adds the columns of hindsight to chunks that are about to leave."""

    def __init__(self, spec: ExperienceSpec, reward: GoalReward, seed: int) -> None:
        """`spec` is that of what leaves; goals are drawn by a generator of its own."""
        self._spec, self._reward = spec, reward
        self._achieved, self._desired = spec.field(ACHIEVED_GOAL), spec.field(DESIRED_GOAL)
        self._random = np.random.default_rng(seed)

    def __call__(self, columns: Columns) -> Columns:
        """Columns [M, rows, …] of M chunks of any length, and with them hindsight_goal [M, rows, k, *shape] and its rewards.

        Goals of row t were achieved in rows t+1 … of its episode, as far as the chunk goes, the row of an episode's last
        observation included; each as likely. A row without any has its own goal again, and the reward that it had.
        """
        future = rows_of_future(columns["episode_step"])  # [M, rows]
        achieved, desired = columns[ACHIEVED_GOAL], columns[DESIRED_GOAL]  # [M, rows, *shape]
        goal = np.repeat(desired[:, :, None], self._spec.goals, axis=2)  # [M, rows, k, *shape]
        reward = np.repeat(columns["reward"][:, :, None].astype(np.float32), self._spec.goals, axis=2)
        chunk, row = np.nonzero(future)  # [N] rows that have a future
        if len(chunk):
            ahead = self._random.integers(future[chunk, row][:, None], size=(len(chunk), self._spec.goals))
            reached = self._achieved.decode(achieved[chunk[:, None], row[:, None] + 1 + ahead])  # [N, k, *shape]
            rests = self._desired.encode(reached)
            came_to = np.repeat(self._achieved.decode(achieved[chunk, row + 1])[:, None], self._spec.goals, axis=1)
            shape = (-1, *self._desired.shape)
            told = self._reward(came_to.reshape(shape), self._desired.decode(rests).reshape(shape))
            goal[chunk, row] = rests
            reward[chunk, row] = told.reshape(-1, self._spec.goals)
        return columns | {HINDSIGHT_GOAL: goal, HINDSIGHT_REWARD: reward}


def rows_of_future(episode_step: np.ndarray) -> np.ndarray:
    """How many rows of the same episode follow each row: [M, rows] in, [M, rows] int64 out.

    The next row is of the same episode if and only if its age is one more: that of a first row is 0.
    """
    row = np.arange(episode_step.shape[1])
    last = np.broadcast_to(row, episode_step.shape).copy()  # [M, rows] where an episode ends, itself; elsewhere the chunk's end
    last[:, :-1][episode_step[:, 1:] == episode_step[:, :-1] + 1] = row[-1]
    ends: np.ndarray = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    return ends - row
