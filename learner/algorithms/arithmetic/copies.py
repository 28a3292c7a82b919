"""Target networks: copies that follow another network."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def frozen_copy(module: ModuleT) -> ModuleT:
    """A copy that is not trained and keeps its running statistics."""
    return copy.deepcopy(module).eval().requires_grad_(False)


@torch.no_grad()
def copy_into(target: nn.Module, source: nn.Module) -> None:
    """Parameters and running statistics, in place."""
    values = [*source.parameters(), *source.buffers()]
    for theirs, ours in zip([*target.parameters(), *target.buffers()], values, strict=True):
        theirs.copy_(ours)


@torch.no_grad()
def lerp_into(targets: Iterable[Tensor], sources: Iterable[Tensor], share: float, lerps: bool = True) -> None:
    """Moves each target by this share of its way to its source. `lerps`: whether the device has that as one operation."""
    for theirs, ours in zip(targets, sources, strict=True):
        if lerps:
            theirs.lerp_(ours, share)
        else:
            theirs.mul_(1 - share).add_(ours, alpha=share)
