"""Copies of networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from learner.algorithms.arithmetic.copies import average_into, frozen_copy
from learner.engine.averages import AVERAGE_INTERVAL
from learner.networks.recurrent import Gru, Lstm


@pytest.mark.parametrize("memory", [Lstm, Gru])
def test_the_weights_of_a_copied_memory_are_gathered_as_cudnn_wants_them(
    memory: type[Lstm] | type[Gru], monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[nn.RNNBase] = []
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", lambda rnn: gathered.append(rnn))
    copied = frozen_copy(nn.Sequential(nn.Linear(2, 3), memory(3, 4)))
    assert copied[1].rnn is gathered[-1]


@pytest.mark.parametrize("lerps", [True, False])
def test_an_average_is_of_the_last_updates_and_at_first_of_a_tenth_of_all(lerps: bool) -> None:
    network = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, affine=False))
    average = frozen_copy(network)

    def after(updates: int, weight: float) -> float:
        nn.init.constant_(next(network.parameters()), weight)
        average_into(average, network, updates, window=100, lerps=lerps)
        return float(next(average.parameters()))

    assert after(AVERAGE_INTERVAL, 3.0) == 3.0, "a tenth of so few updates is the newest weights"
    assert after(AVERAGE_INTERVAL + 1, 9.0) == 3.0, "not at each update"
    assert after(500, 4.0) == pytest.approx(3.0 + AVERAGE_INTERVAL / 50)
    assert after(100_000, 4.2) == pytest.approx(3.2 + AVERAGE_INTERVAL / 100)
    network[1].running_mean.fill_(7.0)  # type: ignore[union-attr, operator]
    after(100_000 + AVERAGE_INTERVAL, 4.2)
    assert torch.equal(average[1].running_mean, network[1].running_mean)  # type: ignore[arg-type]
