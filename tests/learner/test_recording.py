"""Recorded updates, by a stand-in for CUDA's graphs: work is taken in without being done, and a launch fills the same memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.update import Dqn
from learner.algorithms.sac.config import SacConfig
from learner.algorithms.sac.update import Sac
from learner.config import LearnerConfig
from learner.devices.capabilities import capabilities
from learner.updates import graphs as recording
from learner.updates import optimiser as optim
from learner.updates.base import Batch
from learner.updates.graphs import RecordError, record
from learner.updates.optimiser import Answer, Optimiser
from tests.learner.examples import CPU, image, make_batch, make_spec, vector
from transport.experience import Continuous, ExperienceSpec

SPEC = make_spec(image(shape=(12, 12)), vector(), stack=2, n_step=2)
CONFIG = LearnerConfig(batch_size=8, device="cpu")


class StandIn:
    """Does as CUDA's graphs do, on tensors that are named to it: recording changes none of them."""

    def __init__(self, state: list[Tensor], spoil: Callable[[], None] = lambda: None) -> None:
        self._state, self._spoil = state, spoil
        self.launches = 0

    def record(self, work: Callable[[], Answer]) -> Answer:
        before = [tensor.detach().clone() for tensor in self._state]
        with torch.random.fork_rng([]):  # nothing is drawn, either
            self._work, self._answer = work, work()
        with torch.no_grad():
            for tensor, value in zip(self._state, before, strict=True):
                tensor.copy_(value)
        return self._answer

    def launch(self) -> None:
        self.launches += 1
        metrics, priorities = self._work()
        for name, value in metrics.items():
            self._answer[0][name].copy_(value)
        self._answer[1].copy_(priorities)
        self._spoil()


@pytest.fixture(autouse=True)
def device_with_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    able = replace(capabilities(CPU), graphs=True)
    for module in (optim, recording):
        monkeypatch.setattr(module, "capabilities", lambda device: able)


def trained(updates: int = 3) -> tuple[Dqn, Optimiser]:
    torch.manual_seed(0)
    dqn = Dqn(SPEC, DqnConfig(hidden=16, n_step=2, target_period=2), CPU)
    optimiser = Optimiser(dqn.parameters(), CONFIG, CPU)
    for seed in range(updates):
        optimiser.update(dqn, batch_of(seed))
    return dqn, optimiser


def batch_of(seed: int) -> Batch:
    torch.manual_seed(100 + seed)
    return make_batch(SPEC, 8)


def test_recorded_updates_are_those_that_would_have_been_done() -> None:
    usual, plain = trained()
    dqn, optimiser = trained()
    made: list[StandIn] = []

    def make_graph() -> StandIn:
        made.append(StandIn(optimiser.changed_tensors(dqn)))
        return made[-1]

    record(optimiser, dqn, batch_of(3), make_graph)
    dqn.after_update()
    plain.update(usual, batch_of(3))
    for seed in range(4, 8):
        metrics, priorities = optimiser.update(dqn, batch_of(seed))
        expected, theirs = plain.update(usual, batch_of(seed))
        assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
            {name: float(value) for name, value in expected.items()}, rel=1e-4
        )
        torch.testing.assert_close(priorities, theirs)
    assert made[0].launches == 1 + 4, "one to try it"
    assert dqn.updates == usual.updates == 8
    for one, other in zip(dqn.network.parameters(), usual.network.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(dqn.target.parameters(), usual.target.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_record_of_random_updates_draws_what_the_update_would_draw() -> None:
    spec = ExperienceSpec((vector(),), Continuous((-1.0, -1.0), (1.0, 1.0)), 16)
    torch.manual_seed(1)
    sac = Sac(spec, SacConfig(hidden=16), CPU)
    optimiser = Optimiser(sac.parameters(), CONFIG, CPU, sac.rates())
    batch = make_batch(make_spec(vector()), 8)._replace(action=torch.randn(8, 2), probability=torch.rand(8))
    optimiser.update(sac, batch)
    record(optimiser, sac, batch, lambda: StandIn(optimiser.changed_tensors(sac)))
    assert optimiser.recorded is not None


@pytest.mark.parametrize("spoiled", ["parameter", "priority", "metric"])
def test_a_record_that_does_something_else_is_not_used_and_changes_nothing(spoiled: str) -> None:
    dqn, optimiser = trained()
    graph = StandIn(optimiser.changed_tensors(dqn), lambda: spoil())

    def spoil() -> None:
        with torch.no_grad():
            if spoiled == "parameter":
                dqn.parameters()[0].add_(0.01)
            elif spoiled == "priority":
                graph._answer[1][3] += 1.0
            else:
                graph._answer[0]["q"] += 1.0

    before = [tensor.detach().clone() for tensor in optimiser.changed_tensors(dqn)]
    reason = {"parameter": "changes the weights otherwise", "priority": "other priorities", "metric": "finds another q"}[spoiled]
    with pytest.raises(RecordError, match=reason):
        record(optimiser, dqn, batch_of(3), lambda: graph)
    assert optimiser.recorded is None
    assert all(torch.equal(one, other) for one, other in zip(before, optimiser.changed_tensors(dqn), strict=True))


def test_a_graph_that_cannot_be_made_costs_a_line_and_nothing_else() -> None:
    class Refusing(StandIn):
        def record(self, work: Callable[[], Answer]) -> Answer:
            super().record(work)
            raise RuntimeError("operation not permitted when stream is capturing\n\nlots of advice")

    dqn, optimiser = trained()
    before = [parameter.detach().clone() for parameter in dqn.parameters()]
    with pytest.raises(RecordError, match=r"^operation not permitted when stream is capturing$"):
        record(optimiser, dqn, batch_of(3), lambda: Refusing(optimiser.changed_tensors(dqn)))
    assert all(torch.equal(one, other) for one, other in zip(before, dqn.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in dqn.parameters())
    optimiser.update(dqn, batch_of(3))


def test_without_graphs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "capabilities", capabilities)
    dqn, optimiser = trained()
    with pytest.raises(RecordError, match="kernels one by one"):
        record(optimiser, dqn, batch_of(3))
