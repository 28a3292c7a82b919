"""Torsos of one's own: a class, and a function that puts known parts together."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor, nn

from learner.networks.parts import Concat


class Residual(nn.Module):
    """Its forward() is its own, so an actor runs the module itself, in torch."""

    def __init__(self, inputs: Mapping[str, tuple[int, ...]], width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(sum(map(prod, inputs.values())), width)
        self.second = nn.Linear(width, width)

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        hidden = torch.relu(self.first(torch.cat([value.flatten(1) for value in inputs.values()], 1)))
        return hidden + torch.relu(self.second(hidden))


def normalised(inputs: Mapping[str, tuple[int, ...]], width: int = 32) -> nn.Module:
    """All its parts are known, so an actor runs it in numpy."""
    return nn.Sequential(Concat(), nn.Linear(sum(map(prod, inputs.values())), width), nn.LayerNorm(width), nn.SiLU())
