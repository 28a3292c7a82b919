"""Recurrent memories. Their state is carried from step to step: tensors [N, size] float32, zero at the start of an episode.

A custom memory is a module made with (features, width) that has `features`, `state` and a forward() like the ones here. It may
also have an unroll() like theirs, which computes many steps faster than one after the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from learner.devices.capabilities import capabilities

MEMORIES = {"lstm": "learner.networks.recurrent:Lstm", "gru": "learner.networks.recurrent:Gru"}
LONGEST = 100  # steps that units remember at first; with other biases, a cue 30 steps back has almost no gradient
MOST_PADDING = 4  # greatest number of rows with padding, as a multiple of those without
Tensors = Mapping[str, Tensor]
F = TypeVar("F", bound=Callable[..., Any])


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


def _uncompiled(function: F) -> F:
    """Is not compiled: torch.compile would unroll a loop, for many minutes, and does not know torch's kernels for sequences.

    torch.compiler.disable imports torch's compiler, which takes as long as the rest of torch, and every process that builds a
    network imports this module. So it is called with the function's first call.
    """

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*arguments)

    disabled: list[Any] = []
    return call  # type: ignore[return-value]


class Lstm(nn.Module):
    """Long short-term memory, Hochreiter and Schmidhuber 1997 (doi:10.1162/neco.1997.9.8.1735).

    Its forget and input gates begin with biases log u and -log u, u uniform in 1 … LONGEST, so that units forget after about 1
    to LONGEST steps: Tallec and Ollivier 2018 (arXiv:1804.11188, eq. 16).
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(features, width)
        self.features, self.state = width, {"memory/h": (width,), "memory/c": (width,)}
        remembered = _log_steps(width)
        _set_biases(self.rnn, slice(0, 2 * width), torch.cat([-remembered, remembered]))

    def forward(self, features: Tensor, state: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        _, (hidden, cell) = self.rnn(features[None], (state["memory/h"][None], state["memory/c"][None]))
        return hidden[0], {"memory/h": hidden[0], "memory/c": cell[0]}

    @_uncompiled
    def unroll(self, features: Tensor, first: Tensor, state: Tensors) -> Tensor:
        """The outputs [T, B, width] of stepwise(), by torch's kernels for whole sequences."""
        pieces = Pieces.of(first)
        if pieces is None:
            return stepwise(self, features, first, state)[0]
        states = [pieces.initial_state(first, state[name]) for name in self.state]
        return pieces.join(self.rnn(pieces.split(features), (states[0], states[1]))[0])


class Gru(nn.Module):
    """Gated recurrent unit, Cho et al. 2014 (arXiv:1406.1078). Its update gate, which keeps the state, begins as Lstm's gates."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(features, width)
        self.features, self.state = width, {"memory/h": (width,)}
        _set_biases(self.rnn, slice(width, 2 * width), _log_steps(width))

    def forward(self, features: Tensor, state: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
        _, hidden = self.rnn(features[None], state["memory/h"][None])
        return hidden[0], {"memory/h": hidden[0]}

    @_uncompiled
    def unroll(self, features: Tensor, first: Tensor, state: Tensors) -> Tensor:
        """The outputs [T, B, width] of stepwise(), by torch's kernels for whole sequences."""
        pieces = Pieces.of(first)
        if pieces is None:
            return stepwise(self, features, first, state)[0]
        return pieces.join(self.rnn(pieces.split(features), pieces.initial_state(first, state["memory/h"]))[0])


@_uncompiled
def stepwise(memory: Memory, features: Tensor, first: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
    """Features [T, B, …], `first` bool [T, B], where an episode begins, and the state before -> outputs [T, B, width], and the
    state after."""
    outputs = []
    for row, begins in zip(features, first[..., None], strict=True):
        state = {name: torch.where(begins, 0.0, value) for name, value in state.items()}
        output, state = memory(row, state)
        outputs.append(output)
    return torch.stack(outputs), state


class Pieces:
    """T rows of B streams, cut where episodes begin: S pieces side by side, padded to the length of the longest, P.

    torch's kernels for sequences cannot reset the state within a sequence, so each piece is a sequence of its own. On a CPU they
    learn from 8 streams of 64 rows 10 to 20 times as fast as a loop over the rows. Where the cuts are depends on the data, so
    the host waits for the device.
    """

    @classmethod
    def of(cls, first: Tensor) -> Pieces | None:
        """None where a loop over the rows is better: with much padding, or where each new shape needs other kernels."""
        if capabilities(first.device).few_shapes:
            return None
        pieces = cls(first)
        return pieces if pieces.longest * pieces.number <= MOST_PADDING * first.numel() else None

    def __init__(self, first: Tensor) -> None:
        self._length, self._streams = first.shape
        begins = first.T.clone()  # [B, T]
        begins[:, 0] = True
        starts = begins.flatten().nonzero().squeeze(1)  # [S]
        piece = begins.flatten().cumsum(0) - 1  # [B * T] the piece of each row
        step = torch.arange(len(piece), device=first.device) - starts[piece]
        self.number, self.longest = len(starts), int(step.max()) + 1
        self._place = step * self.number + piece  # [B * T] of each row among the P * S
        self._heads = piece[:: self._length]  # [B] the pieces that continue a stream

    def split(self, rows: Tensor) -> Tensor:
        """[T, B, F] -> [P, S, F]."""
        rows = rows.transpose(0, 1).flatten(0, 1)
        padded = rows.new_zeros(self.longest * self.number, rows.shape[1])
        return padded.index_copy(0, self._place, rows).unflatten(0, (self.longest, self.number))

    def initial_state(self, first: Tensor, state: Tensor) -> Tensor:
        """The state [B, width] before the first row -> [1, S, width]: zero where an episode begins."""
        continued = torch.where(first[0, :, None], 0.0, state)
        return state.new_zeros(self.number, state.shape[1]).index_copy(0, self._heads, continued)[None]

    def join(self, outputs: Tensor) -> Tensor:
        """[P, S, width] -> [T, B, width]."""
        rows = outputs.flatten(0, 1).index_select(0, self._place)
        return rows.unflatten(0, (self._streams, self._length)).transpose(0, 1)


def _log_steps(width: int) -> Tensor:
    return torch.empty(width).uniform_(1, LONGEST).log()


@torch.no_grad()
def _set_biases(rnn: nn.RNNBase, gates: slice, values: Tensor) -> None:
    """Sets the biases of some gates. torch adds two for each gate; the second becomes 0."""
    rnn.get_parameter("bias_ih_l0")[gates] = values
    rnn.get_parameter("bias_hh_l0")[gates] = 0
