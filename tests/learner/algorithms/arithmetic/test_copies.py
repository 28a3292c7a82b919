"""Copies of networks."""

from __future__ import annotations

import pytest
from torch import nn

from learner.algorithms.arithmetic.copies import frozen_copy
from learner.networks.recurrent import Gru, Lstm


@pytest.mark.parametrize("memory", [Lstm, Gru])
def test_the_weights_of_a_copied_memory_are_gathered_as_cudnn_wants_them(
    memory: type[Lstm] | type[Gru], monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[nn.RNNBase] = []
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", lambda rnn: gathered.append(rnn))
    copied = frozen_copy(nn.Sequential(nn.Linear(2, 3), memory(3, 4)))
    assert copied[1].rnn is gathered[-1]
