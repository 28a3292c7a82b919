"""The running scale of a critic's values, by the rewards alone."""

from __future__ import annotations

import math

import numpy as np

from learner.engine.module import Module
from learner.engine.returns import lambda_return
from learner.engine.rollouts import Rollout

TYPICAL = 3.0  # root mean square of the values after division by the scale; bins reach 10
LEAST_SHARE = 0.05  # of a rollout in the running mean
STATISTICS = {"count": 0.0, "square": 0.0, "scale": 1.0}  # and their first values


class ReturnScale(Module):
    """Values are divided by `scale`. Bins cannot be rescaled: values that were learned by an older scale are multiplied by the
    ratio that observe() returns, and the critic learns the rest.

    A scale by the values themselves would grow without end where the entropy's share of them, which it multiplies, is large.
    """

    def __init__(self) -> None:
        super().__init__({name: np.full((), first, np.float32) for name, first in STATISTICS.items()})

    @property
    def scale(self) -> np.float32:
        return np.float32(self.tensors["scale"])

    def observe(self, square: float) -> np.float32:
        """Takes in the mean square of a rollout's values, unless the scale would become infinite, NaN or 0. Returns the scale
        before divided by the new one."""
        count, mean, before = (float(each) for each in self.tensors.values())
        count += 1
        mean += max(1 / count, LEAST_SHARE) * (square - mean)
        scale = math.sqrt(mean) / TYPICAL
        if not 0 < scale < math.inf:
            return np.float32(1)
        for own, value in zip(self.tensors.values(), (count, mean, scale), strict=True):
            own[...] = value
        return np.float32(before / scale)


def value_square(rollout: Rollout, gamma: float) -> float:
    """The mean square of the values of a rollout's items, estimated without a critic.

    A discounted sum of rewards that is cut off has a share of its value, 1 - gamma^steps for steady rewards; a terminated one has
    all of it. The sum of their squares over the sum of those shares' squares is the mean square for steady rewards.
    """
    nothing, discount = np.zeros_like(rollout.reward.T), rollout.discount.T
    every = np.where(discount == 0, np.float32(1), np.float32(1 - gamma))
    parts = (lambda_return(each, discount, nothing, rollout.cut.T, 1.0).T for each in (rollout.reward.T, every))
    sums, shares = (rollout.of_items(part) for part in parts)
    return float(sums @ sums) / float(shares @ shares)
