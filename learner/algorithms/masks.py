"""Masked actions in numpy, for acting. The mask of the newest row counts: 1 is allowed, 0 is forbidden.

A mask of zeros allows every action: no action is taken on such an observation. In torch: learner/algorithms/arithmetic/masked.py.
"""

from __future__ import annotations

import numpy as np

from transport.experience import ACTION_MASK, Categorical, Columns, ExperienceSpec

LOWEST = np.finfo(np.float32).min


def allowed_actions(spec: ExperienceSpec, observation: Columns) -> np.ndarray | None:
    """[K, n] bool, from an observation {name: [K, stack, *shape]}; None where the environment has no mask."""
    if not (isinstance(spec.action, Categorical) and spec.action.masked):
        return None
    mask = observation[ACTION_MASK][:, -1] != 0
    return mask | ~mask.any(1, keepdims=True)


def masked(values: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Q-values or logits [K, n] with -inf for forbidden actions. The argmax is an allowed action, even of values that are not
    finite."""
    return np.where(allowed, np.maximum(values, LOWEST), -np.inf)


def draw_allowed(random: np.random.Generator, allowed: np.ndarray) -> np.ndarray:
    """Actions [K], uniform over the allowed ones of each row of `allowed` [K, n]."""
    return np.where(allowed, random.random(allowed.shape), -1.0).argmax(1)
