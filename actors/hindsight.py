"""Hindsight experience replay: for each row, further goals that its episode achieved later, and the rewards for them.

Andrychowicz et al. 2017 (arXiv:1707.01495, section 4.5), strategy "future". Actors sample the goals, because only they have the
environment's reward function. Rows are not duplicated: the k goals and their rewards are columns of the row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from actors.errors import EnvError
from learner.algorithms.columns import HINDSIGHT_GOAL, HINDSIGHT_REWARD
from transport.experience import ACHIEVED_GOAL, DESIRED_GOAL, Columns, ExperienceSpec

ComputeReward = Callable[[np.ndarray, np.ndarray, Any], Any]  # achieved goals, desired goals, info -> rewards
ADVICE = "turn it off by --algorithm.hindsight 0"
TOLERANCE = 1e-4  # relative: stored goals are float32, the environment's own may be float64


class GoalReward:
    """Calls a family's `compute_reward` for many goals at once, and checks its result."""

    def __init__(self, compute: ComputeReward | None) -> None:
        """Raises EnvError for None."""
        if compute is None:
            raise EnvError(f"hindsight needs an environment that has compute_reward; {ADVICE}")
        self._compute = compute

    def __call__(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """Achieved and desired goals [N, *shape] -> rewards [N] float32. Raises EnvError if it fails or gives another shape."""
        try:
            reward = np.asarray(self._compute(achieved, desired, {}), np.float32)
        except Exception as error:  # a user's function may raise anything; report it in one line
            message = " ".join(str(error).split())
            raise EnvError(f"compute_reward of {len(achieved)} goals: {type(error).__name__}: {message}; {ADVICE}") from error
        if reward.shape != (len(achieved),):
            raise EnvError(
                f"compute_reward of {len(achieved)} goals gave shape {reward.shape}, not {(len(achieved),)}: hindsight needs one "
                f"reward for each; {ADVICE}"
            )
        return reward

    def check(self, achieved: np.ndarray, desired: np.ndarray, reward: np.ndarray) -> None:
        """Raises EnvError unless compute_reward of the goals [N, *shape] of N steps gives the rewards [N] of these steps."""
        computed = self(achieved, desired)
        for given, again in zip(reward.tolist(), computed.tolist(), strict=True):
            if not abs(given - again) <= TOLERANCE * max(1.0, abs(given)):
                raise EnvError(
                    f"compute_reward gives {again:g} for a step whose reward was {given:g}, so hindsight would learn from wrong "
                    f"rewards: the reward must depend on the goals alone; {ADVICE}"
                )


class Hindsight:
    """Adds the columns of hindsight to chunks before they are sent."""

    def __init__(self, spec: ExperienceSpec, reward: GoalReward, seed: int) -> None:
        """`spec`: of the chunks. `seed`: of the generator that samples the goals."""
        self._spec, self._reward = spec, reward
        self._achieved, self._desired = spec.field(ACHIEVED_GOAL), spec.field(DESIRED_GOAL)
        self._random = np.random.default_rng(seed)

    def __call__(self, columns: Columns) -> Columns:
        """Adds hindsight_goal [M, rows, k, *shape] and hindsight_reward [M, rows, k] to columns [M, rows, …] of M chunks.

        The goals of row t are sampled uniformly from those achieved in the rows after t of the same episode and chunk, the row of
        an episode's last observation included. A row without later rows gets its own goal and reward k times.
        """
        later = count_later_rows(columns["episode_step"])  # [M, rows]
        achieved, desired = columns[ACHIEVED_GOAL], columns[DESIRED_GOAL]  # [M, rows, *shape]
        goal = np.repeat(desired[:, :, None], self._spec.goals, axis=2)  # [M, rows, k, *shape]
        reward = np.repeat(columns["reward"][:, :, None].astype(np.float32), self._spec.goals, axis=2)
        chunk, row = np.nonzero(later)  # [N] rows that have later rows
        if len(chunk):
            ahead = self._random.integers(later[chunk, row][:, None], size=(len(chunk), self._spec.goals))
            sampled = self._achieved.decode(achieved[chunk[:, None], row[:, None] + 1 + ahead])  # [N, k, *shape]
            stored = self._desired.encode(sampled)
            result = np.repeat(self._achieved.decode(achieved[chunk, row + 1])[:, None], self._spec.goals, axis=1)
            shape = (-1, *self._desired.shape)
            rewards = self._reward(result.reshape(shape), self._desired.decode(stored).reshape(shape))
            goal[chunk, row] = stored
            reward[chunk, row] = rewards.reshape(-1, self._spec.goals)
        return columns | {HINDSIGHT_GOAL: goal, HINDSIGHT_REWARD: reward}


def count_later_rows(episode_step: np.ndarray) -> np.ndarray:
    """The number of later rows of the same episode, for each row: [M, rows] -> [M, rows] int64.

    The next row is of the same episode if and only if its episode_step is one more; that of an episode's first row is 0.
    """
    row = np.arange(episode_step.shape[1])
    last = np.broadcast_to(row, episode_step.shape).copy()  # [M, rows] the row itself where an episode ends, otherwise the last
    last[:, :-1][episode_step[:, 1:] == episode_step[:, :-1] + 1] = row[-1]
    ends: np.ndarray = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    return ends - row
