"""The learner on a device that has none of what the better ones have: DirectML, by a stand-in that refuses the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from learner import __main__ as command
from learner.algorithms.base import ActionBatch
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.ppo.config import LOG_PROB, PpoConfig
from learner.algorithms.sac.config import SacConfig
from learner.config import LearnerConfig
from learner.devices.capabilities import DeviceError
from learner.feed.batches import to_chunks
from learner.updates.adam import PlainAdam
from learner.updates.optimiser import AdamOptimiser
from learner.updates.runtime import LearnerRuntime
from learner.weights import checkpoint
from tests.learner.algorithms.sac import test_update as test_sac
from tests.learner.examples import CPU, image, make_batch, make_spec, make_update, vector
from tests.learner.rollouts import play, to_arrays
from tests.learner.stand_in import Lacking, like_directml
from tests.learner.test_loop import CONFIG, SPEC, Bench, write_run
from tests.learner.test_loop import bench as bench  # noqa: PLC0414  # a fixture
from tests.transport.columns import scalars
from transport.experience import Categorical, Chunk, Columns, Continuous, ExperienceSpec

PIXELS = make_spec(image(shape=(12, 12)), vector(), n=4, stack=2, n_step=3)


@pytest.fixture
def engine() -> str:
    return "torch"


@pytest.fixture
def bare() -> Iterator[Lacking]:
    with like_directml() as lacking:
        yield lacking


def dqn_changes(network: str, batch: Any) -> tuple[list[Tensor], Tensor]:
    """What three updates on a batch make of the parameters, and the last priorities."""
    torch.manual_seed(0)
    config = DqnConfig(hidden=16, network=network, target_update_interval=2)  # type: ignore[arg-type]
    dqn = make_update(PIXELS, config, LearnerConfig(batch_size=16, accumulation=2, learning_rate=1e-3))
    for _ in range(3):
        metrics, priorities = dqn.update(batch)
    assert all(bool(value.isfinite()) for value in metrics.values())
    return [parameter.detach().clone() for parameter in dqn.policy.parameters()], priorities


@pytest.mark.parametrize("network", ["nature", "nature_batchnorm"])
def test_dqn_learns_there_what_it_learns_on_a_cpu(network: str) -> None:
    torch.manual_seed(1)
    batch = make_batch(PIXELS, 16)
    expected, priorities = dqn_changes(network, batch)
    with like_directml():
        found, others = dqn_changes(network, batch)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(priorities, others, rtol=1e-3, atol=1e-4)


def ppo_change(spec: ExperienceSpec, chunks: list[Chunk]) -> list[Tensor]:
    torch.manual_seed(0)
    config = PpoConfig(hidden=16, n_epochs=2, minibatches=2)
    ppo = make_update(spec, config, LearnerConfig(batch_size=16, learning_rate=1e-3), max_policy_lag=2)
    ppo.update(to_chunks(to_arrays(spec, chunks), spec, CPU))
    return [value.detach().clone().float() for value in ppo.policy.state_dict().values()]


@pytest.mark.parametrize("action", [Categorical(3), Continuous((-1.0, 0.0), (1.0, 3.0))])
def test_ppo_learns_there_what_it_learns_on_a_cpu(action: Categorical | Continuous) -> None:
    spec = ExperienceSpec((image(shape=(12, 12)), vector()), action, 8, 2, 1, extras=scalars(LOG_PROB))
    random = np.random.default_rng(0)

    def act(observation: Columns) -> ActionBatch:
        chosen = random.integers(3, size=2) if isinstance(action, Categorical) else random.normal(size=(2, 2)).astype(np.float32)
        return ActionBatch(chosen, {LOG_PROB: np.full(2, -1.0, np.float32)}, {})

    chunks, _ = play(spec, act, streams=2, steps=20, seed=4)
    expected = ppo_change(spec, chunks)
    with like_directml():
        found = ppo_change(spec, chunks)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def sac_change(batch: Any) -> list[Tensor]:
    torch.manual_seed(0)
    sac = make_update(test_sac.make_spec(hindsight=2), SacConfig(hidden=16, tau=0.1), test_sac.LEARNER)
    for number in range(3):
        torch.manual_seed(10 + number)
        sac.update(batch)
    return [value.detach().clone() for module in sac.modules.values() for value in module.state_dict().values()]


def test_sac_learns_there_what_it_learns_on_a_cpu_target_included() -> None:
    torch.manual_seed(2)
    batch = test_sac.make_batch(test_sac.make_spec(hindsight=2))
    expected = sac_change(batch)
    with like_directml():
        found = sac_change(batch)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_a_run_learns_there_and_a_checkpoint_goes_there_and_back(request: pytest.FixtureRequest) -> None:
    bench: Bench = request.getfixturevalue("bench")
    first = bench.learner(updates=6)
    first.run()
    with like_directml():
        second = bench.learner(updates=6)
        assert isinstance(second.runtime.first.adam, PlainAdam)
        assert (second.epoch, second.update.counters) == (3, {"updates": 6})
        for one, other in zip(first.runtime.first.parameters, second.runtime.first.parameters, strict=True):
            assert torch.equal(one, other)
        second.run()
    third = bench.learner(updates=4)
    assert isinstance(third.runtime.first.adam, torch.optim.Adam)
    assert (third.epoch, third.update.counters) == (6, {"updates": 12})
    for name, value in second.runtime.state().items():
        torch.testing.assert_close(third.runtime.state()[name].float(), value.float())
    third.run()
    assert third.update.counters["updates"] == 16
    assert all(bool(value.isfinite().all()) for value in third.runtime.first.parameters)
    assert checkpoint.read(bench.run_dir.latest)[1]["epoch"] == "8"


def test_compiling_is_left_out_and_said(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    bench: Bench = request.getfixturevalue("bench")
    with like_directml():
        learner = bench.learner(updates=2, config=msgspec.structs.replace(CONFIG, compile=True))
        learner.run()
    assert "--learner.compile is ignored: torch.compile does not support DirectML" in capsys.readouterr().out
    assert learner.update.counters["updates"] == 2


def optimiser_of(config: LearnerConfig) -> AdamOptimiser:
    return LearnerRuntime(config, CPU).optimiser("main", torch.nn.Linear(1, 1))


def test_another_precision_than_float32_is_refused_in_one_line(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench: Bench = request.getfixturevalue("bench")
    monkeypatch.setattr("tests.learner.test_loop.CONFIG", msgspec.structs.replace(CONFIG, precision="bfloat16"))
    write_run(bench.run_dir, SPEC)
    monkeypatch.setattr("sys.argv", ["learner", str(bench.run_dir.path)])
    monkeypatch.setattr(command, "Lifetime", bench.life)
    with like_directml():
        assert command.main() == 2
        assert optimiser_of(LearnerConfig()).precision == "float32"
        with pytest.raises(DeviceError):
            optimiser_of(LearnerConfig(precision="float16"))
    out = capsys.readouterr().out
    assert out == "learner: precision bfloat16 is not available on cpu: use auto, or float32\n"


def test_the_host_reads_the_norm_there_and_nothing_else_of_the_device(bare: Lacking) -> None:
    dqn = make_update(PIXELS, DqnConfig(hidden=16), LearnerConfig(batch_size=8))
    batch = make_batch(PIXELS, 8)
    dqn.update(batch)
    before = bare.reads
    dqn.update(batch)
    steps = len(dqn.optimiser.parameters)  # Adam's counts, which are the host's
    assert bare.reads - before == 1 + steps
