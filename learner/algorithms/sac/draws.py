"""Actions that a tanh-Gaussian policy draws, and the gradient of its loss by its outputs, in arrays."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from learner.algorithms.arithmetic.squashed import GREATEST_LOG_STD, HALF_LOG_2_PI, LEAST_LOG_STD
from learner.program.buffers import ones


class Draws(NamedTuple):
    """Actions drawn from the policy, and their derivatives by its output: [N, A] each, log_prob [N]."""

    mean: np.ndarray  # unbounded
    bounded: np.ndarray  # tanh of the unbounded action
    log_prob: np.ndarray  # log-density of the bounded action
    spread: np.ndarray  # deviation times noise: the derivative of the unbounded action by the log-std
    free: np.ndarray  # bool: the log-std is within its bounds


def draw(output: np.ndarray, noise: np.ndarray) -> Draws:
    """`output` [N, 2A]: means and log-stds; `noise` [N, A], standard normal.

    Haarnoja et al. 2018 (arXiv:1812.05905, appendix C, eq. 26), with log(1 - tanh(u)^2) = 2 (log 2 - |u| - log(1 + exp(-2 |u|))).
    """
    actions = noise.shape[1]
    mean, raw = output[:, :actions], output[:, actions:]
    log_std = np.minimum(np.maximum(raw, LEAST_LOG_STD), GREATEST_LOG_STD)
    spread = np.exp(log_std) * noise
    action = mean + spread
    size = np.abs(action)
    density = size + np.log1p(np.exp(-2 * size))
    density *= 2
    density -= log_std
    density -= 0.5 * noise * noise
    log_prob = density[:, 0] if actions == 1 else density @ ones(actions)
    log_prob = log_prob - np.float32((HALF_LOG_2_PI + 2 * math.log(2)) * actions)
    return Draws(mean, np.tanh(action), log_prob, spread, raw == log_std)


def by_output(draws: Draws, by_action: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The gradient of the mean of temperature * log_prob - value by the policy's output, [b, 2A] (eq. 9 and 10 of the paper).

    by_action: [b, A], the gradient of the mean of -value by the bounded actions. share: temperature / b. `draws`: of these b.
    """
    bounded = draws.bounded
    by_unbounded = by_action * (1 - bounded * bounded) + (2 * share) * bounded  # d log_prob / d action = 2 tanh(action)
    return np.concatenate([by_unbounded, (by_unbounded * draws.spread - share) * draws.free], 1)
