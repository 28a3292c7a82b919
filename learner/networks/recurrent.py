"""Recurrent memories. Their state is carried from step to step: tensors [N, size] float32, zero at the start of an episode.

A custom memory is a module made with (features, width) that has `features`, `state` and a forward() like the ones here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

MEMORIES = {"lstm": "learner.networks.recurrent:Lstm", "gru": "learner.networks.recurrent:Gru"}
Tensors = Mapping[str, Tensor]


class Memory(Protocol):
    """The recurrent part of a body."""

    @property
    def features(self) -> int:
        """The number of output features."""

    @property
    def state(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the state of one row, by name; the names are column names."""

    def __call__(self, features: Tensor, state: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        """One step: the torso's features [N, …] and the state before -> [N, features], and the state after."""


class Lstm(nn.Module):
    """Long short-term memory, Hochreiter and Schmidhuber 1997 (doi:10.1162/neco.1997.9.8.1735)."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(features, width)
        self.features, self.state = width, {"memory/h": (width,), "memory/c": (width,)}

    def forward(self, features: Tensor, state: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        hidden, cell = self.cell(features, (state["memory/h"], state["memory/c"]))
        return hidden, {"memory/h": hidden, "memory/c": cell}


class Gru(nn.Module):
    """Gated recurrent unit, Cho et al. 2014 (arXiv:1406.1078)."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(features, width)
        self.features, self.state = width, {"memory/h": (width,)}

    def forward(self, features: Tensor, state: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = self.cell(features, state["memory/h"])
        return hidden, {"memory/h": hidden}
