"""Torsos as a user writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from learner.networks.parts import Concat

Shapes = Mapping[str, tuple[int, ...]]


class Torso(nn.Module):
    """A class of one's own: numpy cannot know what its forward() does."""

    def __init__(self, inputs: Shapes, width: int = 8) -> None:
        super().__init__()
        self.layer = nn.Linear(sum(torch.Size(shape).numel() for shape in inputs.values()), width)

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return torch.sin(self.layer(torch.cat([value.flatten(1) for value in inputs.values()], 1)))


def known(inputs: Shapes, width: int = 8) -> nn.Module:
    """Of parts that numpy knows."""
    size = sum(torch.Size(shape).numel() for shape in inputs.values())
    return nn.Sequential(Concat(), nn.LayerNorm(size), nn.Linear(size, width), nn.SiLU())


def lazy(inputs: Shapes) -> nn.Module:
    return nn.Sequential(Concat(), nn.LazyLinear(5), nn.ReLU())


class Checked(nn.Module):
    class Config(msgspec.Struct, forbid_unknown_fields=True):
        width: int = 4
        scale: float = 1.0

    def __init__(self, inputs: Shapes, width: int, scale: float) -> None:
        super().__init__()
        self.width, self.scale = width, scale
        self.concat = Concat()

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return self.concat(inputs)[:, : self.width] * self.scale  # type: ignore[no-any-return]


def raising(inputs: Shapes) -> nn.Module:
    raise RuntimeError("no\nluck")


def nothing(inputs: Shapes) -> Any:
    return 3


class Masked(Torso):
    """With a mask as attention has it."""

    def __init__(self, inputs: Shapes, persistent: bool = False) -> None:
        super().__init__(inputs)
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1), persistent=persistent)


class Scripted(Torso):
    def __init__(self, inputs: Shapes) -> None:
        super().__init__(inputs)
        self.layer: Any = torch.jit.script(self.layer)


class Weighted(Torso):
    """Holds a tensor that is computed from another, which cannot be copied."""

    def __init__(self, inputs: Shapes) -> None:
        super().__init__(inputs)
        self.weight = self.layer.weight * 2


class Flat(nn.Module):
    """Gives [N, n, 1], which is no [N, features]."""

    def __init__(self, inputs: Shapes) -> None:
        super().__init__()

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return next(iter(inputs.values()))[..., None]


class Tuple(Flat):
    def forward(self, inputs: Mapping[str, Tensor]) -> Any:
        return inputs, inputs


class Wrong(Flat):
    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return inputs["elsewhere"]


def normalising(inputs: Shapes) -> nn.Module:
    """With batch normalisation of vectors."""
    size = sum(torch.Size(shape).numel() for shape in inputs.values())
    return nn.Sequential(Concat(), nn.BatchNorm1d(size), nn.Linear(size, 8), nn.ReLU())
