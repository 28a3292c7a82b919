"""Recorded updates, with a stand-in for CUDA graphs: recording changes nothing, and a launch writes the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.update import Weighted
from learner.algorithms.sac.config import SacConfig
from learner.config import LearnerConfig
from learner.devices.capabilities import capabilities
from learner.updates import acceleration
from learner.updates import compile as compiling
from learner.updates import graphs as recording
from learner.updates import optimiser as optim
from learner.updates.base import Outcome, Transitions
from learner.updates.graphs import RecordError
from learner.updates.runtime import LearnerRuntime
from learner.updates.trees import leaves
from tests.learner.examples import CPU, image, make_batch, make_spec, make_update, vector
from transport.experience import Continuous, ExperienceSpec

SPEC = make_spec(image(shape=(12, 12)), vector(), stack=2, n_step=2)
CONFIG = LearnerConfig(batch_size=8, device="cpu", graphs="off")
RECORDING = LearnerConfig(batch_size=8, device="cpu", graphs="on")
TRYING = LearnerConfig(batch_size=8, device="cpu", graphs="auto")


class StandIn:
    """Stands in for a CUDA graph of an optimiser's step: recording changes no tensor, and freezes numbers."""

    def __init__(self, optimiser: Any) -> None:
        self._state: list[Tensor] = optimiser.changed_tensors()
        self._groups = optimiser.adam.param_groups
        self.launches = 0

    def spoil(self) -> None:
        """What a launch does beside the step."""

    def record(self, work: Callable[[], Outcome]) -> Outcome:
        before = [tensor.detach().clone() for tensor in self._state]
        with torch.random.fork_rng([]):  # nothing is drawn, either
            self._work, self._answer = work, work()
        self._rates = [group["lr"] for group in self._groups]
        with torch.no_grad():
            for tensor, value in zip(self._state, before, strict=True):
                tensor.copy_(value)
        return self._answer

    def launch(self) -> None:
        self.launches += 1
        rates = [group["lr"] for group in self._groups]
        self._set_rates(self._rates)  # numbers as they were recorded; tensors with what they hold now
        for mine, theirs in zip(leaves(self._answer), leaves(self._work()), strict=True):
            mine.copy_(theirs)
        self._set_rates(rates)
        self.spoil()

    def _set_rates(self, rates: list[Any]) -> None:
        for group, rate in zip(self._groups, rates, strict=True):
            group["lr"] = rate


@pytest.fixture(autouse=True)
def device_with_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    able = replace(capabilities(CPU), graphs=True)
    for module in (optim, recording, acceleration):
        monkeypatch.setattr(module, "capabilities", lambda device: able)


WATCHED: list[Any] = []


def watched(update: Any) -> Any:
    WATCHED[:] = [update]
    return update


def trained(config: LearnerConfig = CONFIG, updates: int = 3) -> Any:
    torch.manual_seed(0)
    dqn = make_update(SPEC, DqnConfig(hidden=16, n_step=2, target_update_interval=2), config)
    if config.graphs != "off":
        watched(dqn)
    for seed in range(updates):
        dqn.update(batch_of(seed))
    return dqn


def batch_of(seed: int) -> Transitions:
    torch.manual_seed(100 + seed)
    return make_batch(SPEC, 8)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    """Every graph that is made, each of the update that is watched."""
    made: list[StandIn] = []

    def make_graph() -> StandIn:
        made.append(StandIn(WATCHED[0].optimiser))
        return made[-1]

    monkeypatch.setattr(recording, "CudaGraph", make_graph)
    monkeypatch.setattr(acceleration, "WARM_STEPS", 2)
    return made


def same(one: Iterable[Tensor], other: Iterable[Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def test_recorded_updates_equal_eager_ones(graphs: list[StandIn], capsys: pytest.CaptureFixture[str]) -> None:
    usual, dqn = trained(), trained(RECORDING, 0)
    for seed in range(3):
        dqn.update(batch_of(seed))
    assert len(graphs) == 1 and "launched as one recorded graph" in capsys.readouterr().out
    for seed in range(3, 8):
        metrics, priorities = dqn.update(batch_of(seed))
        expected, theirs = usual.update(batch_of(seed))
        assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
            {name: float(value) for name, value in expected.items()}, rel=1e-4
        )
        torch.testing.assert_close(priorities, theirs)
    assert graphs[0].launches == 1 + 5, "one to try it"
    assert dqn.counters == usual.counters == {"updates": 8}
    for name, module in dqn.modules.items():
        for one, other in zip(module.parameters(), usual.modules[name].parameters(), strict=True):
            torch.testing.assert_close(one, other)


def test_a_record_serves_updates_of_its_own_size_and_others_run_eagerly(
    graphs: list[StandIn], capsys: pytest.CaptureFixture[str]
) -> None:
    usual, dqn = trained(updates=0), trained(RECORDING, 0)
    for seed, items in enumerate((8, 8, 8, 8, 5, 8)):
        torch.manual_seed(seed)
        batch = make_batch(SPEC, items)
        _, priorities = dqn.update(batch)
        torch.testing.assert_close(priorities, usual.update(batch)[1])
    assert graphs[0].launches == 1 + 2
    assert capsys.readouterr().out.count("serve updates of one batch size") == 1


def test_a_checkpoint_that_is_restored_is_followed_by_a_new_record(graphs: list[StandIn]) -> None:
    usual, dqn = trained(), trained(RECORDING, 0)
    for seed in range(3):
        dqn.update(batch_of(seed))
    for update in (usual, dqn):
        update.optimiser.load_state({name: value.clone() for name, value in update.optimiser.state().items()})
    for seed in range(3, 8):
        dqn.update(batch_of(seed))
        usual.update(batch_of(seed))
    assert [graph.launches for graph in graphs] == [1, 1 + 2], "the first refers to the old tensors"
    for one, other in zip(dqn.policy.parameters(), usual.policy.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_graph_recorded_after_a_change_of_the_learning_rate_follows_it(graphs: list[StandIn]) -> None:
    usual, dqn = trained(updates=4), trained(RECORDING, 4)
    for seed, share in enumerate((1.0, 0.5, 0.5, 0.5, 0.25, 2.0), 4):
        for update in (usual, dqn):
            update.optimiser.scale_learning_rate(share)
            update.update(batch_of(seed))
    assert [graph.launches for graph in graphs] == [1 + 2, 1 + 2], "the second is launched with two other rates"
    assert dqn.optimiser.learning_rate == usual.optimiser.learning_rate == 2.0 * CONFIG.learning_rate
    for one, other in zip(dqn.policy.parameters(), usual.policy.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_recorded_update_draws_the_random_numbers_that_the_eager_one_draws(graphs: list[StandIn]) -> None:
    spec = ExperienceSpec((vector(),), Continuous((-1.0, -1.0), (1.0, 1.0)), 16)
    torch.manual_seed(1)
    sac = watched(make_update(spec, SacConfig(hidden=16), RECORDING))
    batch = make_batch(make_spec(vector()), 8)._replace(action=torch.randn(8, 2), probability=torch.rand(8))
    for _ in range(4):
        sac.update(batch)
    assert [graph.launches for graph in graphs] == [1 + 1]


@pytest.mark.parametrize("how", ["on", "auto"])
def test_a_compiled_loss_is_recorded_by_the_graph_of_the_step_and_by_no_other(
    how: Any, graphs: list[StandIn], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    calls: list[bool] = []  # of the compiled loss: whether a graph is recorded or launched
    options: list[dict[str, Any]] = []
    within: list[int] = []

    def compile_(function: Any, **given: Any) -> Any:
        options.append(given)

        def compiled(*inputs: Any) -> Any:
            calls.append(bool(within))
            return function(*inputs)

        return compiled

    def inside(method: Any) -> Any:
        def called(*given: Any) -> Any:
            within.append(1)
            try:
                return method(*given)
            finally:
                within.pop()

        return called

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.setattr(compiling.torch, "compile", compile_)
    monkeypatch.setattr(StandIn, "record", inside(StandIn.record))
    monkeypatch.setattr(StandIn, "launch", inside(StandIn.launch))
    dqn = trained(msgspec.structs.replace(RECORDING, compile=True, graphs=how), 0)
    dqn.optimiser.process._compiled = tmp_path / "compiled"
    for seed in range(4):
        dqn.update(batch_of(seed))
    assert len(graphs) == 1 and graphs[0].launches == 2 and calls[-1] and "compiled the update" in capsys.readouterr().out
    assert calls.count(True) == 3, "recorded once and launched twice"
    assert options == [{"dynamic": False}], "not reduce-overhead, which would record graphs of its own"


@pytest.mark.parametrize("spoiled", ["parameter", "priority", "metric"])
def test_a_graph_that_differs_from_the_step_is_not_used_and_changes_nothing(
    spoiled: str, graphs: list[StandIn], capsys: pytest.CaptureFixture[str]
) -> None:
    usual, dqn = trained(), trained(RECORDING, 2)

    def spoil(graph: StandIn) -> None:
        with torch.no_grad():
            if spoiled == "parameter":
                next(dqn.policy.parameters()).add_(0.01)
            elif spoiled == "priority":
                assert graph._answer.priorities is not None
                graph._answer.priorities[3] += 1.0
            else:
                graph._answer.metrics["q"] += 1.0

    StandIn.spoil = spoil  # type: ignore[method-assign,assignment]
    try:
        for seed in range(2, 3):
            dqn.update(batch_of(seed))
    finally:
        StandIn.spoil = lambda self: None  # type: ignore[method-assign]
    reason = {"parameter": "changes the weights by", "priority": "other priorities", "metric": "computes another q"}[spoiled]
    assert reason in capsys.readouterr().out
    assert same(dqn.optimiser.changed_tensors(), usual.optimiser.changed_tensors()), "the step was taken once, as it stands"
    dqn.update(batch_of(3))
    assert graphs[0].launches == 1


def test_a_graph_that_cannot_be_made_costs_a_line_and_nothing_else(
    graphs: list[StandIn], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Refusing(StandIn):
        def record(self, work: Callable[[], Outcome]) -> Outcome:
            super().record(work)
            raise RuntimeError("operation not permitted when stream is capturing\n\nlots of advice")

    usual, dqn = trained(updates=4), trained(RECORDING, 2)
    monkeypatch.setattr(recording, "CudaGraph", lambda: Refusing(dqn.optimiser))
    for seed in (2, 3):
        dqn.update(batch_of(seed))
    assert (
        capsys.readouterr().out.count("not recorded (operation not permitted when stream is capturing); training continues") == 1
    )
    assert same(dqn.policy.parameters(), usual.policy.parameters())
    assert all(parameter.grad is None for parameter in dqn.policy.parameters())


def test_a_graph_for_which_there_is_no_memory_costs_lines_and_nothing_else(
    graphs: list[StandIn], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual, dqn = trained(updates=4), trained(RECORDING, 2)

    class Full(StandIn):
        def record(self, work: Callable[[], Outcome]) -> Outcome:
            def failing(items: Weighted) -> Any:
                raise torch.OutOfMemoryError("CUDA out of memory")

            outcome: Outcome = dqn.optimiser.step_eagerly(failing, (Weighted(batch_of(2), torch.ones(8)),))
            return outcome

    monkeypatch.setattr(recording, "CudaGraph", lambda: Full(dqn.optimiser))
    for seed in (2, 3):
        dqn.update(batch_of(seed))
    assert "not recorded (out of memory with a single item" in capsys.readouterr().out
    assert dqn.optimiser.parts == 1 and same(dqn.policy.parameters(), usual.policy.parameters())


def test_a_device_without_graphs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "capabilities", capabilities)
    dqn = trained()
    with pytest.raises(RecordError, match="has no graphs"):
        recording.record(dqn.optimiser, dqn.loss, (Weighted(batch_of(3), torch.ones(8)),))


def test_without_being_asked_only_losses_that_are_declared_to_allow_it_are_recorded(graphs: list[StandIn]) -> None:
    linear = torch.nn.Linear(1, 1)
    for config, recordable, tried in (
        (TRYING, False, False),
        (TRYING, True, True),
        (RECORDING, False, True),
        (CONFIG, True, False),
    ):
        optimiser = LearnerRuntime(config, CPU).optimiser("main", linear, recordable=recordable)
        assert optimiser.acceleration.may_record is tried


def test_a_learner_that_was_not_asked_for_a_graph_is_silent_about_other_batch_sizes(
    graphs: list[StandIn], capsys: pytest.CaptureFixture[str]
) -> None:
    dqn = trained(TRYING, 0)
    for seed in range(30):
        torch.manual_seed(seed)
        dqn.update(make_batch(SPEC, 8 if seed % 2 else 5))
    assert graphs == [] and capsys.readouterr().out == ""


def test_a_graph_for_which_memory_is_too_small_leaves_the_micro_batches_as_they_were(graphs: list[StandIn]) -> None:
    dqn = trained()
    graph = StandIn(dqn.optimiser)

    def record_in_parts(work: Callable[[], Outcome]) -> Outcome:
        dqn.optimiser.parts *= 2
        return StandIn.record(graph, work)

    graph.record = record_in_parts  # type: ignore[method-assign]
    with pytest.raises(RecordError, match="does not fit into memory"):
        recording.record(dqn.optimiser, dqn.loss, (Weighted(batch_of(3), torch.ones(8)),), lambda: graph)
    assert dqn.optimiser.parts == 1
