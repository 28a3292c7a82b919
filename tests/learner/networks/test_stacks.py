"""Who stacks images: torch, or a kernel where it was found equal and faster. The kernel is a stand-in; test_stack_kernel.py has
the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.update import DqnUpdate
from learner.config import LearnerConfig
from learner.devices import capabilities as devices
from learner.networks import stacks
from learner.networks.base import Body
from learner.networks.stacks import choose, stack_rows, stack_windows
from tests.learner.examples import CPU, image, make_batch, make_observation, make_spec, make_update, vector

SPEC = make_spec(image(shape=(2, 12, 12)), vector(), stack=3, n_step=2)
EXACT = LearnerConfig(device="cpu", precision="float32", batch_size=16)


class Kernel:
    """Does by torch what the kernel does; counts its calls. `wrong`: is added to what it gives."""

    def __init__(self, wrong: float = 0.0) -> None:
        self.calls, self.wrong = 0, wrong

    def __call__(self, rows: Tensor, index: Tensor, table: Tensor, memory_format: torch.memory_format) -> Tensor:
        self.calls += 1
        named = {"": rows}
        stacked = (stack_windows if rows.dim() == 5 else stack_rows)(named, index)[""]
        return (table[stacked.long()] + self.wrong).flatten(1, 2).contiguous(memory_format=memory_format)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within, the CPU has Triton's kernels."""
    able = replace(devices.capabilities(CPU), triton=True)
    monkeypatch.setitem(devices.TABLE, "cpu", lambda device: able)
    yield


def made(**options: Any) -> DqnUpdate:
    torch.manual_seed(0)
    update = make_update(SPEC, msgspec.convert({"hidden": 16, "n_step": 2} | options, DqnConfig), EXACT)
    assert isinstance(update, DqnUpdate)
    return update


def times(*seconds: float) -> Callable[[Callable[[], object]], float]:
    """What torch takes, then what the kernel takes."""
    left = list(seconds)

    def measured(action: Callable[[], object]) -> float:
        action()
        return left.pop(0)

    return measured


def chosen(update: DqnUpdate, kernel: Any, *seconds: float, spec: Any = SPEC) -> str:
    return choose(update.modules.values(), spec, 16, CPU, update.optimiser.autocast, lambda: kernel, times(*seconds))


def bodies(update: DqnUpdate) -> list[Body]:
    return [body for module in update.modules.values() for body in module.modules() if isinstance(body, Body)]


def test_a_faster_kernel_with_the_same_values_makes_the_stacks_and_changes_no_bit_of_an_update() -> None:
    kernel, plain, fast = Kernel(), made(), made()
    said = chosen(fast, kernel, 41e-6, 12e-6)
    assert said == "frame stacks in float32: 41 µs by torch, 12 µs by one kernel; the kernel makes them"
    tried = kernel.calls
    for update in (plain, fast):
        torch.manual_seed(1)
        for _ in range(3):
            update.update(make_batch(SPEC, 16))
    assert kernel.calls == tried + 2 * (1 + 3), "of the observation and of the next one; the first update measures its memory"
    weights = plain.policy.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in fast.policy.state_dict().items())


def contiguous(rows: Tensor, index: Tensor, table: Tensor, memory_format: torch.memory_format) -> Tensor:
    return Kernel()(rows, index, table, torch.contiguous_format)


def wide(rows: Tensor, index: Tensor, table: Tensor, memory_format: torch.memory_format) -> Tensor:
    return Kernel()(rows, index, table.double(), memory_format)


@pytest.mark.parametrize(
    ("kernel", "seconds", "reason"),
    [
        (Kernel(), (12e-6, 12e-6), "12 µs by torch, 12 µs by one kernel"),
        (Kernel(wrong=1e-7), (), "the kernel's values are not torch's"),
        (contiguous, (), "the kernel's values are not torch's"),
        (wide, (), "the kernel's values are not torch's"),
    ],
    ids=["slower", "other values", "other memory format", "other type"],
)
def test_a_kernel_that_is_slower_or_gives_something_else_is_not_used(
    kernel: Any, seconds: tuple[float, ...], reason: str
) -> None:
    update = made()
    assert chosen(update, kernel, *seconds) == f"frame stacks in float32: {reason}; torch makes them"
    assert all(body.inputs.kernel is None for body in bodies(update))


@pytest.mark.parametrize("error", [RuntimeError("no kernel\nimage"), OSError("no compiler"), ImportError("libtriton")])
def test_a_kernel_that_fails_is_not_used_and_said(error: Exception) -> None:
    def broken(*_: object) -> Tensor:
        raise error

    def unloadable() -> Any:
        raise error

    update = made()
    reason = " ".join(str(error).split())
    assert chosen(update, broken) == f"frame stacks in float32: the kernel fails ({reason}); torch makes them"
    said = choose(update.modules.values(), SPEC, 16, CPU, nullcontext, unloadable)
    assert f"the kernel fails ({reason})" in said
    update.update(make_batch(SPEC, 16))


def test_nothing_is_said_where_there_is_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> Any:
        raise AssertionError("loaded")

    flat = made(network="mlp")
    assert choose(flat.modules.values(), SPEC, 16, CPU, nullcontext, never) == "", "its images are read as vectors"
    assert choose([nn.Linear(2, 2)], SPEC, 16, CPU, nullcontext, never) == ""
    monkeypatch.undo()
    assert choose(made().modules.values(), SPEC, 16, CPU, nullcontext, never) == "", "no kernels on a CPU"


def test_another_type_or_memory_format_than_the_one_that_was_tried_is_left_to_torch() -> None:
    update, kernel = made(), Kernel()
    chosen(update, kernel, 2.0, 1.0)
    tried, body = kernel.calls, update.policy.body
    windows, index = make_observation(SPEC.fields, (4, 5)), torch.randint(5, (4, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert body.stacked(windows, index, stack_windows)["image"].dtype == torch.uint8
        assert body.preprocess(stack_windows(windows, index))["image"].dtype == torch.bfloat16
    body.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    assert body.stacked(windows, index, stack_windows)["image"].dtype == torch.uint8
    assert kernel.calls == tried


def test_rows_and_windows_are_stacked_alike_and_the_other_fields_are_left_as_stored() -> None:
    update = made()
    chosen(update, Kernel(), 2.0, 1.0)
    body, windows, index = update.policy.body, make_observation(SPEC.fields, (4, 5)), torch.randint(5, (4, 3))
    flat = {name: rows.flatten(0, 1) for name, rows in windows.items()}
    expected = body.preprocess(stack_windows(windows, index))
    for stacked in (
        body.stacked(windows, index, stack_windows),
        body.stacked(flat, index + 5 * torch.arange(4)[:, None], stack_rows),
    ):
        assert stacked["image"].is_floating_point() and torch.equal(stacked["vector"], stack_windows(windows, index)["vector"])
        assert all(torch.equal(value, expected[name]) for name, value in body.preprocess(stacked).items())


def test_the_trial_draws_no_number_of_the_run_and_is_of_the_type_of_the_updates() -> None:
    update = make_update(SPEC, DqnConfig(hidden=16, n_step=2), LearnerConfig(device="cpu", precision="bfloat16"))
    before = torch.get_rng_state()
    assert "in bfloat16: " in chosen(update, Kernel(), 1.0, 2.0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_call_is_measured_by_the_shortest_of_some_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waited = [0.0], []
    monkeypatch.setattr(stacks.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cpu, "synchronize", lambda: waited.append(now[0]))
    calls: list[int] = []

    def action() -> None:
        calls.append(1)
        now[0] += 5.0 if len(calls) < 30 else 2.0

    assert stacks._seconds(action, CPU) == 2.0
    assert len(calls) == stacks.WARM + stacks.ROUNDS * stacks.REPEATS and len(waited) == 2 * stacks.ROUNDS


def test_a_compiled_loss_stacks_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    update, kernel = made(), Kernel()
    chosen(update, kernel, 2.0, 1.0)
    tried = kernel.calls
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    windows, index = make_observation(SPEC.fields, (4, 5)), torch.randint(5, (4, 3))
    assert update.policy.body.stacked(windows, index, stack_windows)["image"].dtype == torch.uint8
    assert kernel.calls == tried
