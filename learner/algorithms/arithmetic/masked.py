"""Masked actions in torch, for losses and targets. In numpy: learner/algorithms/masks.py."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from transport.experience import ACTION_MASK, Categorical, ExperienceSpec

FORBIDDEN = -1e8  # finite: a probability of exactly 0 whose product with its logarithm is 0, not NaN


def masked(spec: ExperienceSpec, values: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
    """Q-values or logits [N, n] of observations {name: [N, stack, *shape]}, FORBIDDEN where the newest row's mask is 0.

    A mask of zeros allows every action: no action is taken on such an observation. Without a mask the values are unchanged.
    """
    if not (isinstance(spec.action, Categorical) and spec.action.masked):
        return values
    mask = observation[ACTION_MASK][:, -1] != 0
    return values.masked_fill(~(mask | ~mask.any(1, keepdim=True)), FORBIDDEN)
