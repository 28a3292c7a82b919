"""Compiling the loss: the same numbers where it works, and no harm where it does not."""

from __future__ import annotations

import shutil
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.update import Dqn
from learner.config import LearnerConfig
from learner.updates import compile as compiling
from learner.updates.base import Batch
from learner.updates.compile import CompileError, cache_in, compile_loss
from learner.updates.optimiser import Optimiser
from tests.learner.examples import CPU, image, make_batch, make_spec

SPEC = make_spec(image(shape=(12, 12)), n=4, stack=2, n_step=3)


def make_dqn() -> Dqn:
    torch.manual_seed(0)
    return Dqn(SPEC, DqnConfig(hidden=16, network="nature_batchnorm", target_period=2), CPU)


def example(dqn: Dqn) -> tuple[Batch, torch.Tensor]:
    torch.manual_seed(1)
    batch = make_batch(SPEC, 16)
    return batch.part(0, 8), dqn.importance(batch)[:8]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # torch warns of itself
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with a C++ compiler, and there is none")
def test_updates_are_the_same_to_rounding_and_weights_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for compiled in (False, True):
        dqn = make_dqn()
        names = list(dqn.policy().state_dict())
        optimiser = Optimiser(dqn.parameters(), LearnerConfig(batch_size=16, accumulation=2), CPU)
        if compiled:
            optimiser.compiled_loss = compile_loss(dqn, example(dqn), optimiser.autocast, lambda: True)
            monkeypatch.setattr("torch._dynamo.config.error_on_recompile", True)
        for number in range(5):  # across copies into the target network
            torch.manual_seed(10 + number)
            metrics, priorities = optimiser.update(dqn, make_batch(SPEC, 16))
        assert list(dqn.policy().state_dict()) == names
        found.append([*dqn.policy().state_dict().values(), priorities, *metrics.values()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def stand_in(monkeypatch: pytest.MonkeyPatch, compiled: Any) -> None:
    monkeypatch.setattr(compiling.torch, "compile", lambda function, **options: compiled)


def test_a_failure_is_one_line_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    dqn = make_dqn()
    before = {name: value.clone() for name, value in dqn.policy().state_dict().items()}

    def broken(batch: Batch, weight: torch.Tensor) -> Any:
        dqn.loss(batch, weight)  # moves the running statistics
        raise RuntimeError("backend='inductor' raised:\nInvalidCxxCompiler: no g++\n\nSet TORCHDYNAMO_VERBOSE=1")

    stand_in(monkeypatch, broken)
    with pytest.raises(CompileError, match="^backend='inductor' raised: InvalidCxxCompiler: no g\\+\\+$"):
        compile_loss(dqn, example(dqn), nullcontext, lambda: True)
    assert all(torch.equal(value, before[name]) for name, value in dqn.policy().state_dict().items())
    assert all(parameter.grad is None for parameter in dqn.parameters())


def test_what_works_is_given_back_with_no_gradient_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    dqn = make_dqn()
    stand_in(monkeypatch, dqn.loss)
    before = {name: value.clone() for name, value in dqn.policy().state_dict().items()}
    assert compile_loss(dqn, example(dqn), nullcontext, lambda: True) == dqn.loss
    assert all(torch.equal(value, before[name]) for name, value in dqn.policy().state_dict().items())
    assert all(parameter.grad is None for parameter in dqn.parameters())


def test_a_compiler_that_hangs_is_left_behind_when_the_run_stops_or_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    release, asked = threading.Event(), []

    def hangs(batch: Batch, weight: torch.Tensor) -> Any:
        release.wait(60)
        raise RuntimeError("let go")

    stand_in(monkeypatch, hangs)
    dqn = make_dqn()
    try:
        with pytest.raises(CompileError, match="the run is stopping"):
            compile_loss(dqn, example(dqn), nullcontext, lambda: asked.append(1) or len(asked) < 3)  # type: ignore[func-returns-value]
        assert len(asked) == 3
        with pytest.raises(CompileError, match="more than 0.4 s"):
            compile_loss(dqn, example(dqn), nullcontext, lambda: True, limit_seconds=0.4)
    finally:
        release.set()


def test_what_a_killed_compiler_left_is_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    folder = tmp_path / "compiled"
    with pytest.raises(CompileError), cache_in(folder):
        (folder / "half.so").touch()
        raise CompileError("killed")
    with cache_in(folder):
        assert not (folder / "half.so").exists()
        (folder / "whole.so").touch()
    with cache_in(folder):
        assert (folder / "whole.so").exists()
    (tmp_path / "file").touch()
    with pytest.raises(CompileError, match="cannot write"), cache_in(tmp_path / "file" / "compiled"):
        pass
