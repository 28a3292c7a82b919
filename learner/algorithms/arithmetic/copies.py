"""Copies that follow a network: target networks, and means over its last updates."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

from learner.engine.averages import average_share

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def frozen_copy(module: ModuleT) -> ModuleT:
    """A copy in evaluation mode and without gradients."""
    copied = copy.deepcopy(module).eval().requires_grad_(False)
    for part in copied.modules():
        if isinstance(part, nn.RNNBase):  # its copied weights lie apart: cuDNN would warn, and gather them anew at every step
            part.flatten_parameters()
    return copied


@torch.no_grad()
def copy_into(target: nn.Module, source: nn.Module) -> None:
    """Copies parameters and buffers in place."""
    values = [*source.parameters(), *source.buffers()]
    for own, value in zip([*target.parameters(), *target.buffers()], values, strict=True):
        own.copy_(value)


@torch.no_grad()
def lerp_into(targets: Iterable[Tensor], sources: Iterable[Tensor], share: float, lerps: bool = True) -> None:
    """Polyak averaging: target <- (1 - share) * target + share * source. `lerps`: whether torch.lerp runs on the device."""
    for target, source in zip(targets, sources, strict=True):
        if lerps:
            target.lerp_(source, share)
        else:
            target.mul_(1 - share).add_(source, alpha=share)


@torch.no_grad()
def average_into(average: nn.Module, source: nn.Module, updates: float, window: int, lerps: bool) -> None:
    """After update number `updates` of `source`: average <- its mean weights over about the last `window` updates, and at first
    over a tenth of all. Buffers are copied."""
    if not (share := average_share(updates, window)):
        return
    lerp_into(average.parameters(), source.parameters(), share, lerps)
    for own, value in zip(average.buffers(), source.buffers(), strict=True):
        if own is not value:
            own.copy_(value)
