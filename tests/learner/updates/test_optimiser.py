from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.update import Weighted
from learner.config import LearnerConfig
from learner.devices import capabilities as devices
from learner.devices.capabilities import capabilities
from learner.updates import optimiser as optim
from learner.updates.base import Loss, Transitions
from learner.updates.optimiser import AdamOptimiser
from learner.updates.runtime import LearnerRuntime
from tests.learner.examples import CPU, figures, image, make_batch, make_spec, make_update, vector

SPEC = make_spec(image(shape=(12, 12)), vector(), n=4, stack=2, n_step=3)


def make_dqn(config: LearnerConfig = LearnerConfig()) -> Any:  # noqa: B008
    torch.manual_seed(0)
    return make_update(SPEC, DqnConfig(hidden=32), config)


def make_optimiser(parameter: torch.nn.Parameter) -> AdamOptimiser:
    module = torch.nn.Module()
    module.register_parameter("only", parameter)
    return LearnerRuntime(LearnerConfig(batch_size=1), CPU).optimiser("main", module)


def parameters_after(
    config: LearnerConfig, batch: Transitions
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor], torch.Tensor]:
    dqn = make_dqn(config)
    metrics, priorities = dqn.update(batch)
    return [parameter.detach() for parameter in dqn.policy.parameters()], metrics, priorities


@pytest.mark.parametrize(("side", "expected"), [(84, "bfloat16"), (12, "float32")])
def test_bfloat16_comes_by_itself_with_large_convolutions_only(monkeypatch: pytest.MonkeyPatch, side: int, expected: str) -> None:
    monkeypatch.setattr(devices, "_multiplies_bfloat16", lambda: True)
    dqn = make_update(make_spec(image(shape=(side, side))), DqnConfig(hidden=4))
    assert dqn.optimiser.precision == expected


@pytest.mark.parametrize(
    ("network", "items", "expected"), [("compact", 32, "float32"), ("compact", 64, "bfloat16"), ("nature", 32, "bfloat16")]
)
def test_a_small_batch_of_images_that_are_read_without_overlap_stays_in_float32(
    monkeypatch: pytest.MonkeyPatch, network: str, items: int, expected: str
) -> None:
    monkeypatch.setattr(devices, "_multiplies_bfloat16", lambda: True)
    dqn = make_update(make_spec(image()), DqnConfig(network=network, hidden=4), LearnerConfig(batch_size=items))
    assert dqn.optimiser.precision == expected


def test_what_a_runtime_tells_lies_on_its_device_because_all_figures_are_read_at_once() -> None:
    device = torch.device("meta")
    runtime = LearnerRuntime(LearnerConfig(), device)
    runtime.optimiser("main", torch.nn.Linear(2, 1, device=device))
    names = ("learning_rate", "skipped_updates", "skipped_in_a_row")
    assert {name: value.device for name, value in runtime.figures().items()} == dict.fromkeys(names, device)


@pytest.mark.parametrize("own", [0, 1])
def test_a_module_has_a_rate_of_its_own_wherever_it_stands_and_a_checkpoint_fits_again(own: int) -> None:
    def make() -> tuple[tuple[torch.nn.Linear, ...], AdamOptimiser]:
        torch.manual_seed(0)
        modules = torch.nn.Linear(2, 3), torch.nn.Linear(4, 5)
        return modules, LearnerRuntime(LearnerConfig(), CPU).optimiser("main", *modules, rates={modules[own]: 0.5})

    def step(modules: tuple[torch.nn.Linear, ...], optimiser: AdamOptimiser, gradient: float) -> None:
        for module in modules:
            module.weight.grad, module.bias.grad = torch.full_like(module.weight, gradient), torch.zeros_like(module.bias)
        optimiser._step()

    (modules, optimiser), (others, resumed) = make(), make()
    before = modules[own].weight.detach().clone()
    step(modules, optimiser, 1.0)
    torch.testing.assert_close(before - modules[own].weight, torch.full_like(before, 0.5), rtol=1e-2, atol=0.0)
    for mine, theirs in zip(modules, others, strict=True):
        theirs.load_state_dict(mine.state_dict())
    resumed.load_state({name: value.clone() for name, value in optimiser.state().items()})
    step(modules, optimiser, -3.0)
    step(others, resumed, -3.0)
    for mine, theirs in zip(modules, others, strict=True):
        assert torch.equal(mine.weight, theirs.weight), "each parameter has its own moments again"


def test_accumulated_gradients_equal_those_of_the_whole_batch() -> None:
    batch = make_batch(SPEC, 24)
    gradients = []
    for parts in (1, 4):
        dqn = make_dqn(LearnerConfig(batch_size=24, accumulation=parts, max_grad_norm=1e9))
        seen: list[torch.Tensor] = []
        dqn.optimiser.adam.register_step_pre_hook(
            lambda adam, *_, seen=seen: seen.extend(p.grad.clone() for p in adam.param_groups[0]["params"])
        )
        metrics, priorities = dqn.update(batch)
        gradients.append((seen, metrics, priorities))
    (whole, whole_metrics, whole_priorities), (parts_, parts_metrics, parts_priorities) = gradients
    for one, other in zip(whole, parts_, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(whole_priorities, parts_priorities, rtol=1e-4, atol=1e-5)
    for name in whole_metrics:
        torch.testing.assert_close(whole_metrics[name], parts_metrics[name], rtol=1e-4, atol=1e-5)


def test_gradients_are_clipped_to_the_norm_and_the_norm_before_is_reported() -> None:
    batch = make_batch(SPEC, 8)._replace(reward=torch.full((8, 3), 100.0))
    dqn = make_dqn(LearnerConfig(batch_size=8, max_grad_norm=0.01))
    norms: list[float] = []
    dqn.optimiser.adam.register_step_pre_hook(
        lambda adam, *_: norms.append(math.sqrt(sum(float(p.grad.square().sum()) for p in adam.param_groups[0]["params"])))
    )
    metrics, _ = dqn.update(batch)
    assert norms == [pytest.approx(0.01, rel=1e-3)]
    assert float(metrics["gradient_norm"]) > 0.1
    assert all(parameter.grad is None for parameter in dqn.policy.parameters())


def test_a_step_that_is_not_finite_is_skipped_counted_and_forgotten() -> None:
    torch.manual_seed(1)
    healthy = make_batch(SPEC, 8)
    vectors = healthy.observation["vector"].clone()
    vectors[2] = math.nan
    dqn = make_dqn(LearnerConfig(batch_size=8))
    before = [parameter.detach().clone() for parameter in dqn.policy.parameters()]

    broken = healthy._replace(observation={**healthy.observation, "vector": vectors})
    _, priorities = dqn.update(broken)
    assert figures(dqn)["skipped_updates"] == 1
    assert all(torch.equal(one, other.detach()) for one, other in zip(before, dqn.policy.parameters(), strict=True))
    assert float(priorities[2]) == 0.0 and bool(priorities.isfinite().all())

    dqn.update(healthy)
    fresh, _, _ = parameters_after(LearnerConfig(batch_size=8), healthy)
    assert figures(dqn)["skipped_updates"] == 1
    for one, other in zip(fresh, dqn.policy.parameters(), strict=True):  # as if the skipped one had never been
        torch.testing.assert_close(one, other.detach())


@pytest.mark.parametrize("adam", ["fused", "foreach", "single"])
def test_skipping_works_with_every_kind_of_optimiser(
    adam: Literal["fused", "foreach", "single"], monkeypatch: pytest.MonkeyPatch
) -> None:
    able = replace(capabilities(CPU), adam=adam)
    monkeypatch.setattr(optim, "capabilities", lambda device: able)
    parameter = torch.nn.Parameter(torch.ones(3))
    optimiser = make_optimiser(parameter)
    in_a_row = []
    for gradient, moves in ((1.0, True), (math.nan, False), (math.inf, False), (1.0, True), (math.nan, False)):
        before = parameter.detach().clone()
        parameter.grad = torch.tensor([1.0, gradient, 1.0])
        optimiser._step()
        assert torch.equal(parameter.detach(), before) is not moves
        in_a_row.append(int(optimiser.skipped_in_a_row))
    assert in_a_row == [0, 1, 2, 0, 1] and float(optimiser.skipped) == 3


def test_bfloat16_learns_the_same_direction_in_float32_parameters() -> None:
    torch.manual_seed(2)
    batch = make_batch(SPEC, 16)
    changes = []
    for precision in ("float32", "bfloat16"):
        dqn = make_dqn(LearnerConfig(batch_size=16, precision=precision))  # type: ignore[arg-type]
        before = torch.cat([parameter.detach().flatten().clone() for parameter in dqn.policy.parameters()])
        metrics, _ = dqn.update(batch)
        assert all(parameter.dtype == torch.float32 for parameter in dqn.policy.parameters())
        assert all(value.dtype == torch.float32 for value in metrics.values())
        changes.append(torch.cat([parameter.detach().flatten() for parameter in dqn.policy.parameters()]) - before)
    assert float(torch.cosine_similarity(changes[0], changes[1], dim=0)) > 0.9


def test_a_batch_that_cannot_be_split_evenly_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"batch_size 10 must be a multiple of learner\.accumulation 4"):
        make_dqn(LearnerConfig(batch_size=10, accumulation=4))


def test_an_allocation_that_fails_halves_the_micro_batch_and_changes_nothing_that_is_learned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batch, config = make_batch(SPEC, 24), LearnerConfig(batch_size=24)
    expected, _, whole = parameters_after(config, batch)
    dqn = make_dqn(config)
    loss_of, sizes = dqn.loss, []

    def starved(items: Weighted) -> Loss:
        sizes.append(len(items.weight))
        if len(items.weight) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return loss_of(items)

    monkeypatch.setattr(dqn, "loss", starved)
    _, priorities = dqn.update(batch)
    assert sizes == [8, 24, 12, 6, 6, 6, 6]  # the first to foresee, then what failed, then what fits
    assert dqn.optimiser.parts == 4
    torch.testing.assert_close(priorities, whole, rtol=1e-4, atol=1e-5)
    for one, other in zip(dqn.policy.parameters(), expected, strict=True):
        torch.testing.assert_close(one.detach(), other, rtol=1e-4, atol=1e-5)
    assert "out of memory: micro-batches are halved to 6, accumulated over 4" in capsys.readouterr().out
    dqn.update(batch)
    assert sizes[7:] == [6, 6, 6, 6], "it is remembered"


def test_what_does_not_fit_even_item_by_item_is_said_and_other_errors_are_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dqn, batch = make_dqn(LearnerConfig(batch_size=8)), make_batch(SPEC, 8)
    dqn.update(batch)

    def failing(message: str) -> None:
        def loss(items: Weighted) -> None:
            raise RuntimeError(message)

        monkeypatch.setattr(dqn, "loss", loss)

    failing("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
    with pytest.raises(MemoryError, match="a single item"):
        dqn.update(batch)
    failing("shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="shapes"):
        dqn.update(batch)


def test_a_memory_limit_makes_micro_batches_small_from_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    batch = make_batch(SPEC, 64)
    dqn = make_dqn(LearnerConfig(batch_size=64, memory_limit_bytes=500_000))
    before = {name: value.clone() for name, value in dqn.policy.state_dict().items()}
    dqn.update(batch)
    assert 1 < dqn.optimiser.parts <= 64
    assert "micro-batches of" in capsys.readouterr().out
    assert any(not torch.equal(before[name], value) for name, value in dqn.policy.state_dict().items())


def test_float16_may_skip_until_it_has_found_its_scale() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimiser = make_optimiser(parameter)
    optimiser.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    optimiser.scaler.scale(torch.ones(()))  # as the first loss does
    for _ in range(5):  # at scales 4, 2, 1, 1/2, 1/4
        parameter.grad = torch.tensor([1.0, math.inf, 1.0])
        optimiser._step()
    assert int(optimiser.skipped) == int(optimiser.skipped_in_a_row) == 3, "from scale 1 on it is not the scale"
    parameter.grad = torch.ones(3)
    optimiser._step()
    assert int(optimiser.skipped_in_a_row) == 0
