"""Compiling the loss: the same numbers where it works, and no harm where it does not."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.update import Weighted
from learner.config import LearnerConfig
from learner.updates import compile as compiling
from learner.updates.base import Loss, LossFunction
from learner.updates.compile import CompileError, cache_in, compile_loss
from tests.learner.examples import image, make_batch, make_spec, make_update

SPEC = make_spec(image(shape=(12, 12)), n=4, stack=2, n_step=3)


def make_dqn(config: LearnerConfig = LearnerConfig(batch_size=16)) -> Any:  # noqa: B008
    torch.manual_seed(0)
    return make_update(SPEC, DqnConfig(hidden=16, network="nature_batchnorm", target_update_interval=2), config)


def compiled_loss(dqn: Any, waiting: Callable[[], bool] = lambda: True, **limits: float) -> LossFunction:
    torch.manual_seed(1)
    return compile_loss(dqn.optimiser, dqn.loss, (Weighted(make_batch(SPEC, 8), torch.ones(8)),), waiting, **limits)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # torch warns of itself
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with a C++ compiler, and there is none")
def test_updates_are_the_same_to_rounding_and_weights_keep_their_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = []
    monkeypatch.setattr("torch._dynamo.config.error_on_recompile", True)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    for compiled in (False, True):
        dqn = make_dqn(LearnerConfig(batch_size=16, accumulation=2, compile=compiled))
        dqn.optimiser.process._compiled = tmp_path / "compiled"
        names = list(dqn.policy.state_dict())
        for number in range(5):  # across copies into the target network
            torch.manual_seed(10 + number)
            metrics, priorities = dqn.update(make_batch(SPEC, 16))
        assert list(dqn.policy.state_dict()) == names
        found.append([*dqn.policy.state_dict().values(), priorities, *metrics.values()])
    assert "compiled the update in" in capsys.readouterr().out
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def stand_in(monkeypatch: pytest.MonkeyPatch, compiled: Any) -> None:
    monkeypatch.setattr(compiling.torch, "compile", lambda function, **options: compiled)


def test_a_failure_is_one_line_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    dqn = make_dqn()
    before = {name: value.clone() for name, value in dqn.policy.state_dict().items()}

    def broken(items: Weighted) -> Any:
        dqn.loss(items)  # moves the running statistics
        raise RuntimeError("backend='inductor' raised:\nInvalidCxxCompiler: no g++\n\nSet TORCHDYNAMO_VERBOSE=1")

    stand_in(monkeypatch, broken)
    with pytest.raises(CompileError, match="^backend='inductor' raised: InvalidCxxCompiler: no g\\+\\+$"):
        compiled_loss(dqn)
    assert all(torch.equal(value, before[name]) for name, value in dqn.policy.state_dict().items())
    assert all(parameter.grad is None for parameter in dqn.policy.parameters())


def test_a_compiled_loss_is_returned_and_leaves_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    dqn = make_dqn()
    stand_in(monkeypatch, dqn.loss)
    before = {name: value.clone() for name, value in dqn.policy.state_dict().items()}
    assert compiled_loss(dqn) == dqn.loss
    assert all(torch.equal(value, before[name]) for name, value in dqn.policy.state_dict().items())
    assert all(parameter.grad is None for parameter in dqn.policy.parameters())


def test_a_compiled_loss_serves_micro_batches_of_its_own_size_and_others_run_eagerly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes: list[int] = []
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    dqn = make_dqn(LearnerConfig(batch_size=16, accumulation=2, compile=True))
    dqn.optimiser.process._compiled = tmp_path / "compiled"
    plain = dqn.loss

    def compiled(items: Weighted) -> Loss:
        sizes.append(len(items.weight))
        found: Loss = plain(items)
        return found

    stand_in(monkeypatch, compiled)
    for items in (16, 16, 16, 15):
        dqn.update(make_batch(SPEC, items))
    assert sizes == [8, 8, 8, 8, 8, 8], "once to compile it, then two updates of two and half of the last"


def test_a_compiler_that_hangs_is_abandoned_when_the_run_stops_or_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    release, asked = threading.Event(), []

    def hangs(items: Weighted) -> Any:
        release.wait(60)
        raise RuntimeError("let go")

    stand_in(monkeypatch, hangs)
    dqn = make_dqn()
    try:
        with pytest.raises(CompileError, match="the run is stopping"):
            compiled_loss(dqn, lambda: asked.append(1) or len(asked) < 3)  # type: ignore[func-returns-value]
        assert len(asked) == 3
        with pytest.raises(CompileError, match="more than 0.4 s"):
            compiled_loss(dqn, limit_seconds=0.4)
    finally:
        release.set()


def test_files_of_a_killed_compiler_are_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
