"""Epsilon-greedy acting, whose Q-values give the TD errors of new items: their initial priorities. numpy, on stored rows."""

from __future__ import annotations

import numpy as np

from learner.algorithms.base import ActionBatch, Mode
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.exploration import EpsilonGreedyActing
from learner.inference.base import Inference
from replay.table.layout import PRIORITY
from replay.table.storage import steps_to_boundary
from transport.experience import PERSON, Columns, ExperienceSpec

# Columns that an actor keeps until a chunk is sent: Q-values of the chosen and of the best action. No field may have these names.
TAKEN_VALUE, BEST_VALUE = "q/taken", "q/best"
UNKNOWN = -1.0


class QActing(EpsilonGreedyActing):
    """Rows keep the Q-values of the chosen and of the best action until their chunk is sent, for its initial priorities."""

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionBatch:
        q, state = self._inference(observation, state)
        action, q = self._choose(q, observation, mode)
        return ActionBatch(action, {TAKEN_VALUE: q[np.arange(len(q)), action], BEST_VALUE: q.max(1)}, state)


class DqnActing(QActing):
    """Each row has an initial priority."""

    def __init__(self, spec: ExperienceSpec, config: DqnConfig, inference: Inference) -> None:
        super().__init__(spec, config, inference)
        self._config = config

    def annotate(self, columns: Columns) -> Columns:
        return columns | {PRIORITY: initial_priority(self._spec, columns, self._config)}


def initial_priority(spec: ExperienceSpec, columns: Columns, config: DqnConfig) -> np.ndarray:
    """|n-step TD error| of the items of chunks, from the Q-values of acting; [..., rows] float32, as the other columns.

    |sum over k < m of gamma^k r_{t+k} + gamma^m max_a Q(s_{t+m}, a) - Q(s_t, a_t)|, m = min(n, steps to the boundary), the
    bootstrap 0 where the episode terminated. `columns` are those of one chunk [rows], or of M chunks of one length [M, rows],
    with TAKEN_VALUE and BEST_VALUE. The priority is UNKNOWN for rows without action, for items that bootstrap from a truncated
    episode's or a stream's last observation or whose Q-values are not finite, for human actions, and for the rows around a
    chunk's items.
    Horgan et al. 2018 (arXiv:1803.00933, section 3).
    """
    shape = columns["reward"].shape
    history, n = spec.history, spec.n_step
    # All chunks concatenated: an item's next n rows are in its own chunk; rows where two chunks mix are set to UNKNOWN below.
    reward, terminated, valid, taken, best = (
        columns[name].reshape(-1) for name in ("reward", "terminated", "valid", TAKEN_VALUE, BEST_VALUE)
    )  # [N]
    count = len(reward) - n
    reward = config.reward_scale * (reward.clip(-1.0, 1.0) if config.clip_rewards else reward)
    steps = steps_to_boundary(terminated, valid, count, n)  # [N - n]
    discount = config.gamma ** np.arange(n + 1)
    return_ = np.zeros(count)
    for k in range(n):
        return_ += np.where(k < steps, discount[k] * reward[k : k + count], 0.0)
    after = np.arange(count) + steps  # [N - n] the row after the last reward
    bootstrap = np.where(terminated[after - 1] != 0, 0.0, discount[steps] * best[after])
    error = np.abs(return_ + bootstrap - taken[:count])
    acted = (valid[:count] != 0) & ((terminated[after - 1] != 0) | (valid[after] != 0)) & np.isfinite(error)
    acted &= columns["policy_version"].reshape(-1)[:count] != PERSON  # `taken` is of another action
    priority: np.ndarray = np.full(shape, UNKNOWN, np.float32)
    priority.reshape(-1)[:count] = np.where(acted, error, UNKNOWN)
    priority[..., :history] = priority[..., shape[-1] - n :] = UNKNOWN
    return priority
