"""A running scale of regression targets in arrays: what learner/algorithms/arithmetic/scaling.py does in torch, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from learner.engine.module import Module

# Of TargetScale, where an algorithm does not choose its own: `magnitude`, and the least share of a new batch in the running mean.
MAGNITUDE, LEAST_SHARE = 10.0, 0.01
SQUARES = ("target_square", "return_square")  # metrics: the arguments of TargetScale.observe


def squares(target: np.ndarray, return_: np.ndarray) -> dict[str, float]:
    """The mean squares of targets, and of the sums of rewards in them, [b] each, where there is a reward: rare rewards are
    no smaller than frequent ones."""
    rewarded = max(int(np.count_nonzero(return_)), 1)
    return dict(zip(SQUARES, (float(target @ target) / len(target), float(return_ @ return_) / rewarded), strict=True))


class TargetScale(Module):
    """The scale, 0-d, and the statistics that it comes from. It stays 1 until the first reward that is not 0."""

    def __init__(
        self,
        scale: np.ndarray,
        layers: Iterable[np.ndarray],
        least_share: float = LEAST_SHARE,
        magnitude: float = MAGNITUDE,
        tolerance: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """`scale` is changed in place, and so are `layers`: weights and biases of the last layers of networks with that scale.
        `magnitude`: the root mean square of the targets after division by the scale. `tolerance`: the scale stays 1 until it
        would leave this interval."""
        super().__init__({name: np.zeros((), np.float32) for name in ("count", *SQUARES, "scale")})
        self.tensors["scale"] = scale  # not a copy
        self._layers = list(layers)
        self._least_share, self._magnitude, self._tolerance = least_share, magnitude, tolerance

    def begin(self, return_square: float) -> None:
        """Sets the first scale if there is none yet, for an algorithm whose targets depend on it."""
        if self.tensors["count"] == 0:
            self.observe(return_square, return_square)

    def observe(self, target_square: float, return_square: float) -> None:
        """Updates the scale by squares() of a batch, unless it would become infinite, NaN or 0.

        The scale comes from the greater of two running means. That of the targets' squares is exponential. That of the rewards'
        squares is over all batches: it keeps the scale from falling to 0 when no more rewards are found and values fall. The
        first scale comes from rewards alone, because the targets before it contain the noise of an untrained network, which may
        be much larger than the rewards. For the same reason it leaves the last layer unchanged. A scale that has come with a
        policy's weights (--learner.weights) is no first one.
        """
        count, targets, returns, before = (float(each) for each in self.tensors.values())
        first = count == 0 and before == 1
        count += returns > 0 or return_square > 0
        share = 1 / max(count, 1)
        targets = return_square if first else targets + max(share, self._least_share) * (target_square - targets)
        returns += share * (return_square - returns)
        if count == 0 or not math.isfinite(targets) or not math.isfinite(returns):
            return
        scale = float(np.float32(math.sqrt(max(targets, returns)) / self._magnitude))
        lowest, highest = self._tolerance
        if before == 1 and lowest < scale < highest:
            scale = 1.0
        if scale == 0:
            return
        if not first and scale != before:
            for layer in self._layers:
                layer *= np.float32(before / scale)
        for own, value in zip(self.tensors.values(), (count, targets, returns, scale), strict=True):
            own[...] = value
