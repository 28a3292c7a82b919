"""Initial priorities: what acting alone can say about how much there is to learn from a new item. numpy, on rows as they rest."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from learner.config import DqnConfig
from replay.storage import steps_to_boundary
from transport.experience import Columns, ExperienceSpec

# What an actor remembers of each row to that end: Q-values of the action taken, and of the best. No observation is called so.
TAKEN_VALUE, BEST_VALUE = "q/taken", "q/best"


def initial_priority(spec: ExperienceSpec, columns: Columns, config: DqnConfig) -> np.ndarray:
    """|n-step TD error| of a chunk's items by the Q-values that acting has computed; [rows] float32 as the chunk's other columns.

    |sum over k < m of gamma^k r_{t+k} + gamma^m max_a Q(s_{t+m}, a) - Q(s_t, a_t)|, m = min(n, steps to the boundary), the
    bootstrap 0 where the episode terminated. `columns` hold TAKEN_VALUE and BEST_VALUE, NaN in rows that nobody acted on; so
    the result is NaN, unknown, for rows without action, for items that bootstrap from an episode's last observation (truncated)
    or a stream's, and for the rows around the chunk's items. Horgan et al. 2018 (arXiv:1803.00933, section 3).
    """
    history, n, gamma = spec.history, spec.n_step, config.gamma
    reward, terminated, valid, taken, best = (
        columns[name][history:] for name in ("reward", "terminated", "valid", TAKEN_VALUE, BEST_VALUE)
    )  # [L + n], from the first item on
    length = len(reward) - n
    reward = config.reward_scale * (reward.clip(-1.0, 1.0) if config.clip_rewards else reward)
    steps = steps_to_boundary(terminated, valid, length, n).astype(np.int64)  # [L]
    offset = np.arange(n)
    discounted = sliding_window_view(reward[:-1], n) * gamma**offset  # [L, n]
    return_ = np.where(offset < steps[:, None], discounted, 0.0).sum(1)
    last = np.arange(length) + steps - 1  # [L] the row of the last reward
    bootstrap = np.where(terminated[last] != 0, 0.0, gamma**steps * best[last + 1])
    priority = np.full(len(columns["reward"]), np.nan, np.float32)
    priority[history : history + length] = np.abs(return_ + bootstrap - taken[:length])
    return priority
