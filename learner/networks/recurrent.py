"""Memories: what a body keeps from step to step. Its parts are [N, size] float32, zero at the beginning of an episode.

A memory of one's own is a module made with (features, width) that has `features`, `state` and such a forward().
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

MEMORIES = {"lstm": "learner.networks.recurrent:Lstm", "gru": "learner.networks.recurrent:Gru"}
Tensors = Mapping[str, Tensor]


class Memory(Protocol):
    """What a body asks of its memory."""

    @property
    def features(self) -> int:
        """Of what it gives."""

    @property
    def state(self) -> Mapping[str, tuple[int, ...]]:
        """Of one row, by name; the names are those of columns."""

    def __call__(self, features: Tensor, state: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        """One step: [N, features of the torso] and the state before -> [N, features], and the state after."""


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
