"""Exploration: an epsilon for each environment, and the actions that it gives."""

from __future__ import annotations

import numpy as np

from learner.algorithms.masks import draw_allowed, masked

STOCHASTIC_EPSILON = 0.05  # of the mode "stochastic"


def epsilon_ladder(offset: int, count: int, total: int, base: float, power: float) -> np.ndarray:
    """epsilon_i = base ** (1 + power * i / (N - 1)), [count] float32, for i = offset … offset + count - 1 of N = total.

    Horgan et al. 2018 (arXiv:1803.00933, section 4.1) with base 0.4, power 7. A single environment gets the middle of the ladder.
    """
    place = (offset + np.arange(count)) / (total - 1) if total > 1 else np.full(count, 0.5)
    return (base ** (1.0 + power * place)).astype(np.float32)


def epsilon_greedy(
    random: np.random.Generator, q: np.ndarray, epsilon: np.ndarray | float, allowed: np.ndarray | None
) -> np.ndarray:
    """Actions [K]: by probability epsilon, a number or [K], uniformly random, else of the greatest Q-value of q [K, n]; among
    `allowed` [K, n] where not all actions are."""
    action: np.ndarray = (q if allowed is None else masked(q, allowed)).argmax(1)
    explore = np.flatnonzero(random.random(len(q), np.float32) < epsilon)
    if len(explore):
        if allowed is None:
            action[explore] = random.integers(q.shape[1], size=len(explore))
        else:
            action[explore] = draw_allowed(random, allowed[explore])
    return action
