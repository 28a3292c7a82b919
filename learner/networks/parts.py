"""Modules that networks are made of, beside torch's own. Numpy can compute all of them: see learner/program/layers.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

Tensors = Mapping[str, Tensor]


class Concat(nn.Module):
    """{name: [N, …]} -> [N, sum of sizes]: all inputs flattened and concatenated."""

    def forward(self, inputs: Tensors) -> Tensor:
        values = [value.flatten(1) for value in inputs.values()]
        return values[0] if len(values) == 1 else torch.cat(values, 1)


class Fields(nn.Module):
    """{name: [N, …]} -> [N, sum of features]: each input has its own branch, [N, …] -> [N, features]."""

    def __init__(self, branches: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.names = list(branches)
        self.branches = nn.ModuleList(branches.values())  # not a ModuleDict: some names of inputs are not allowed in one

    def forward(self, inputs: Tensors) -> Tensor:
        found = [branch(inputs[name]) for name, branch in zip(self.names, self.branches, strict=True)]
        return found[0] if len(found) == 1 else torch.cat(found, 1)


class Dueling(nn.Module):
    """[N, 1 + n], a value and n advantages -> Q-values [N, n] float32: Q = V + A - mean A.

    Wang et al. 2016 (arXiv:1511.06581, eq. 9).
    """

    def forward(self, outputs: Tensor) -> Tensor:
        outputs = outputs.float()
        value, advantage = outputs[:, :1], outputs[:, 1:]
        return value + advantage - advantage.mean(1, keepdim=True)


class Rescale(nn.Module):
    """[N, …] -> the same times a running scale, so that the layers before it compute numbers of one magnitude."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs.float() * self.scale


class LogStd(nn.Module):
    """Means [N, A] -> [N, 2A]: the means, and log-stds that do not depend on the observation."""

    def __init__(self, actions: int, initial: float, least: float, greatest: float) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.full((actions,), initial))
        self.least, self.greatest = least, greatest

    def forward(self, mean: Tensor) -> Tensor:
        return torch.cat([mean, self.log_std.expand_as(mean)], 1)

    @torch.no_grad()
    def keep_in_bounds(self) -> None:
        """Changes the parameter itself: clamped in forward(), it would have no gradient outside the bounds and stay there."""
        self.log_std.clamp_(self.least, self.greatest)


class MeanOverLast(nn.Module):
    """[N, n, M] -> [N, n], for example of quantiles."""

    def forward(self, values: Tensor) -> Tensor:
        return values.mean(-1)


class SoftmaxExpectation(nn.Module):
    """Logits [N, n, M] of a distribution over M values -> its expectation [N, n], Bellemare et al. 2017 (arXiv:1707.06887)."""

    support: Tensor

    def __init__(self, support: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("support", torch.tensor(support))

    def forward(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1) @ self.support
