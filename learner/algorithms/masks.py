"""Actions that the environment forbids, in numpy, for those who act. The newest row's mask counts: 1 allowed, 0 forbidden.

A mask of zeros allows everything: it is that of an observation nobody acts on. In torch: learner/algorithms/arithmetic/masked.py.
"""

from __future__ import annotations

import numpy as np

from transport.experience import ACTION_MASK, Categorical, Columns, ExperienceSpec

LOWEST = np.finfo(np.float32).min


def allowed_actions(spec: ExperienceSpec, observation: Columns) -> np.ndarray | None:
    """[K, n] bool of an observation {name: [K, stack, *shape]}; None where every action is always allowed."""
    if not (isinstance(spec.action, Categorical) and spec.action.masked):
        return None
    mask = observation[ACTION_MASK][:, -1] != 0
    return mask | ~mask.any(1, keepdims=True)


def masked(values: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Q-values or logits [K, n], -inf where an action is forbidden; so the argmax is an allowed one, whatever the values are."""
    return np.where(allowed, np.maximum(values, LOWEST), -np.inf)


def draw_allowed(random: np.random.Generator, allowed: np.ndarray) -> np.ndarray:
    """An action [K] for each row of `allowed` [K, n], each allowed one as likely."""
    return np.where(allowed, random.random(allowed.shape), -1.0).argmax(1)
