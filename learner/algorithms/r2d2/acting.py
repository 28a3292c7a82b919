"""Epsilon-greedy acting, which also computes the initial priorities of whole chunks.

Value rescaling and sequence priorities: Kapturowski et al. 2019 (R2D2, openreview.net/forum?id=r1lyTjAqYX, section 2.3), here in
numpy; for the learner, learner/algorithms/r2d2/update.py.
"""

from __future__ import annotations

import numpy as np

from learner.algorithms.dqn.acting import BEST_VALUE, TAKEN_VALUE, UNKNOWN, QActing
from learner.algorithms.r2d2.config import R2d2Config
from learner.inference.base import Inference
from replay.table.layout import PRIORITY
from transport.experience import PERSON, Columns, ExperienceSpec

EPSILON = 1e-3  # of the rescaling, which without it would be too flat to invert
GREATEST_SHARE = 0.9  # eta: of the greatest error in a sequence's priority; the rest is of the mean


class SequenceActing(QActing):
    """Each chunk has one initial priority."""

    def __init__(self, spec: ExperienceSpec, config: R2d2Config, inference: Inference) -> None:
        super().__init__(spec, config, inference)
        self._config = config

    def annotate(self, columns: Columns) -> Columns:
        return columns | {PRIORITY: sequence_priority(self._spec, columns, self._config)}


def rescale(values: np.ndarray) -> np.ndarray:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + EPSILON x: Pohlen et al. 2018 (arXiv:1805.11593, section 3.2)."""
    found: np.ndarray = np.sign(values) * (np.sqrt(np.abs(values) + 1) - 1) + EPSILON * values
    return found


def restore(values: np.ndarray) -> np.ndarray:
    """The inverse of rescale(): x = u^2 - 1 for x >= 0, where u solves EPSILON u^2 + u = 1 + EPSILON + h(x)."""
    sum_ = 1 + EPSILON + np.abs(values)
    root = 2 * sum_ / (1 + np.sqrt(1 + 4 * EPSILON * sum_))
    found: np.ndarray = np.sign(values) * (root * root - 1)
    return found


def sequence_priority(spec: ExperienceSpec, columns: Columns, config: R2d2Config) -> np.ndarray:
    """0.9 times the greatest and 0.1 times the mean |n-step TD error| of the items of M chunks, [M] float32.

    `columns` are [M, rows], with the Q-values of acting, TAKEN_VALUE and BEST_VALUE. Items that bootstrap from the last
    observation of a truncated episode or of a stream, which was not acted on, do not count, nor do human actions; UNKNOWN
    where none counts.
    """
    n, history = spec.n_step, spec.history
    reward, taken, best = (columns[name][:, history:].astype(np.float64) for name in ("reward", TAKEN_VALUE, BEST_VALUE))
    terminated, valid = (columns[name][:, history:] != 0 for name in ("terminated", "valid"))
    reward = config.reward_scale * (reward.clip(-1.0, 1.0) if config.clip_rewards else reward)
    items = reward.shape[1] - n
    return_, steps = np.zeros((len(reward), items)), np.zeros((len(reward), items), np.int64)
    going, ended = np.ones_like(valid[:, :items]), np.zeros_like(valid[:, :items])
    for k in range(n):
        here = slice(k, k + items)
        return_ += np.where(going, config.gamma**k * reward[:, here], 0.0)
        steps += going
        ended |= going & terminated[:, here]
        going &= ~terminated[:, here] & valid[:, k + 1 : k + 1 + items]
    after = np.arange(items) + steps  # the row after the last reward
    following = np.take_along_axis(best, after, 1)
    if config.value_rescaling:
        following = restore(following)
    target = return_ + np.where(ended, 0.0, config.gamma**steps * following)
    if config.value_rescaling:
        target = rescale(target)
    error = np.abs(target - taken[:, :items])
    known = valid[:, :items] & (ended | np.take_along_axis(valid, after, 1)) & np.isfinite(error)
    known &= columns["policy_version"][:, history : history + items] != PERSON
    error = np.where(known, error, 0.0)
    mean = error.sum(1) / np.maximum(known.sum(1), 1)
    priority = np.where(known.any(1), GREATEST_SHARE * error.max(1) + (1 - GREATEST_SHARE) * mean, UNKNOWN)
    return priority.astype(np.float32)
