"""Masked actions, in numpy for acting and in torch for losses and targets.

The mask of the newest row counts: 1 is allowed, 0 is forbidden. A mask of zeros allows every action: no action is taken on such
an observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from transport.experience import ACTION_MASK, Categorical, Columns, ExperienceSpec

if TYPE_CHECKING:
    from torch import Tensor

LOWEST = np.finfo(np.float32).min
FORBIDDEN = -1e8  # finite: a probability of exactly 0 whose product with its logarithm is 0, not NaN


def allowed_actions(spec: ExperienceSpec, observation: Columns) -> np.ndarray | None:
    """[K, n] bool, from an observation {name: [K, stack, *shape]}; None where the environment has no mask."""
    if not (isinstance(spec.action, Categorical) and spec.action.masked):
        return None
    mask = observation[ACTION_MASK][:, -1] != 0
    return mask | ~mask.any(1, keepdims=True)


def mask_array(values: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Q-values or logits [K, n] with -inf for forbidden actions. The argmax is an allowed action, even of values that are not
    finite."""
    return np.where(allowed, np.maximum(values, LOWEST), -np.inf)


def draw_allowed(random: np.random.Generator, allowed: np.ndarray) -> np.ndarray:
    """Actions [K], uniform over the allowed ones of each row of `allowed` [K, n]."""
    return np.where(allowed, random.random(allowed.shape), -1.0).argmax(1)


def masked(spec: ExperienceSpec, values: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
    """Q-values or logits [N, n] of observations {name: [N, stack, *shape]}, FORBIDDEN where the newest row's mask is 0. Without
    a mask the values are unchanged."""
    if not (isinstance(spec.action, Categorical) and spec.action.masked):
        return values
    mask = observation[ACTION_MASK][:, -1] != 0
    return values.masked_fill(~(mask | ~mask.any(1, keepdim=True)), FORBIDDEN)
