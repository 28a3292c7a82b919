"""A running scale of regression targets, so that networks regress on numbers of one magnitude whatever the size of the rewards.

After Pop-Art, van Hasselt et al. 2016 (arXiv:1602.07714, proposition 1), without its shift. A network's outputs are multiplied by
a scale that follows their targets. Whenever the scale changes by a factor, the last layer is divided by that factor, so that no
value changes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from learner.engine.scaling import LEAST_SHARE, MAGNITUDE, SQUARES


def squares(target: Tensor, return_: Tensor) -> dict[str, Tensor]:
    """The mean squares of targets, and of the sums of rewards in them, [b] each, where there is a reward: rare rewards are
    no smaller than frequent ones."""
    rewarded = (return_ != 0).sum().clamp(min=1)
    return dict(zip(SQUARES, (target.square().mean(), return_.square().sum() / rewarded), strict=True))


class TargetScale(nn.Module):
    """The scale, 0-d, and the statistics that it comes from. It stays 1 until the first reward that is not 0."""

    count: Tensor
    target_square: Tensor
    return_square: Tensor
    scale: Tensor

    def __init__(
        self,
        scale: Tensor,
        layers: Iterable[Tensor],
        least_share: float = LEAST_SHARE,
        magnitude: float = MAGNITUDE,
        tolerance: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """`scale` is changed in place, and so are `layers`: weights and biases of the last layers of networks with that scale.
        `magnitude`: the root mean square of the targets after division by the scale. `tolerance`: the scale stays 1 until it
        would leave this interval."""
        super().__init__()
        for name in ("count", *SQUARES):
            self.register_buffer(name, torch.zeros_like(scale))
        self.register_buffer("scale", scale)
        self._layers = [tensor.detach() for tensor in layers]  # views, whose memory never moves
        self._least_share, self._magnitude, self._tolerance = least_share, magnitude, tolerance

    def begin(self, return_square: Tensor) -> None:
        """Sets the first scale if there is none yet, for an algorithm whose targets depend on it."""
        self.observe(return_square, return_square, wanted=self.count == 0)

    @torch.no_grad()
    def observe(self, target_square: Tensor, return_square: Tensor, wanted: Tensor | bool = True) -> None:
        """Updates the scale by squares() of a batch, unless it would become infinite, NaN or 0, or is not `wanted`.

        The scale comes from the greater of two running means. That of the targets' squares is exponential. That of the rewards'
        squares is over all batches: it keeps the scale from falling to 0 when no more rewards are found and values fall. The
        first scale comes from rewards alone, because the targets before it contain the noise of an untrained network, which may
        be much larger than the rewards. For the same reason it leaves the last layer unchanged. A scale that has come with a
        policy's weights (--learner.weights) is no first one.
        """
        count = self.count + ((self.return_square > 0) | (return_square > 0))
        first, share = (self.count == 0) & (self.scale == 1), 1 / count.clamp(min=1)
        targets = torch.lerp(self.target_square, target_square, share.clamp(min=self._least_share))
        targets = torch.where(first, return_square, targets)
        returns = torch.lerp(self.return_square, return_square, share)
        scale = torch.maximum(targets, returns).sqrt() / self._magnitude
        lowest, highest = self._tolerance
        scale = torch.where((self.scale == 1) & (scale > lowest) & (scale < highest), 1.0, scale)
        usable = (count > 0) & scale.isfinite() & (scale > 0) & wanted
        factor = torch.where(usable & ~first, self.scale / scale, 1.0)
        for tensor in self._layers:
            tensor.mul_(factor)
        new = {"count": count, "target_square": targets, "return_square": returns, "scale": scale}
        for name, value in new.items():
            own = getattr(self, name)
            own.copy_(torch.where(usable, value, own))
