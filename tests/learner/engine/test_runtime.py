"""The state of a learner by the engine: its random numbers, and those with which torch goes on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from learner.config import LearnerConfig
from learner.engine.module import Module
from learner.engine.runtime import EngineRuntime
from learner.updates.base import Backend
from learner.updates.runtime import LearnerRuntime
from tests.learner.examples import CPU
from transport.metrics import Metrics

CONFIG = LearnerConfig(batch_size=8, learning_rate=0.5)


def module() -> Module:
    return Module({"weight": np.ones((2, 3), np.float32), "count": np.zeros((), np.float32)}, ["weight"])


def test_random_numbers_go_on_where_they_were_saved_and_begin_with_the_seed() -> None:
    runtime, other = EngineRuntime(CONFIG, seed=4), EngineRuntime(CONFIG, seed=5)
    assert np.array_equal(runtime.random.random(3), np.random.default_rng(4).random(3))
    runtime.random.integers(0, 9, 3, np.int32)  # leaves half of a draw
    saved = runtime.random_state()
    assert saved.keys() == {"engine"}
    expected = [runtime.random.random(3), runtime.random.integers(0, 9, 3, np.int32), runtime.random.permutation(9)]
    other.set_random_state(saved)
    found = [other.random.random(3), other.random.integers(0, 9, 3, np.int32), other.random.permutation(9)]
    assert all(np.array_equal(one, two) for one, two in zip(expected, found, strict=True))


def test_a_rollback_leaves_the_random_numbers_where_they_are() -> None:
    runtime, other = EngineRuntime(CONFIG, seed=4), EngineRuntime(CONFIG, seed=4)
    old = runtime.random_state()
    for each in (runtime, other):
        each.random.random(3)
    with runtime.random_kept():
        runtime.set_random_state(old)
    assert runtime.random.random() == other.random.random()


def test_after_a_change_of_library_each_goes_on_with_its_own_random_numbers() -> None:
    engine, by_torch = EngineRuntime(CONFIG, seed=4), LearnerRuntime(CONFIG, CPU)
    torch.manual_seed(6)
    engine.random.random(3)
    states = {name: np.asarray(value) for name, value in engine.random_state().items()}
    expected = engine.random.random()
    by_torch.set_random_state(states)  # a run that began by the engine has no state of torch's: its seed stays
    drawn = torch.rand(2)
    torch.manual_seed(6)
    assert torch.equal(drawn, torch.rand(2))
    saved = {name: np.asarray(value) for name, value in by_torch.random_state().items()}
    assert saved.keys() == {"cpu", "engine"}
    torch_goes_on = torch.rand(2)
    again = EngineRuntime(CONFIG, seed=9)
    again.set_random_state(saved)
    assert again.random.random() == expected
    kept = again.random_state()
    assert np.array_equal(kept["cpu"], saved["cpu"])
    by_torch.set_random_state({"cpu": kept["cpu"]})
    assert torch.equal(torch.rand(2), torch_goes_on)


def test_without_a_state_of_its_own_it_begins_with_the_seed_and_a_damaged_one_is_refused() -> None:
    runtime = EngineRuntime(CONFIG, seed=4)
    runtime.set_random_state({"cpu": np.zeros(5056, np.uint8)})
    assert runtime.random.random() == np.random.default_rng(4).random()
    with pytest.raises(ValueError, match="random/engine"):
        runtime.set_random_state({"engine": np.zeros(7, np.uint8)})
    with pytest.raises(KeyError):
        LearnerRuntime(CONFIG, CPU).set_random_state({})


def test_its_figures_are_those_of_its_optimisers_and_the_first_one_counts_updates() -> None:
    class Process:
        stopping, metrics = False, Metrics()

        def beat(self) -> None: ...

    process = Process()
    runtime = EngineRuntime(CONFIG, process=process)
    first, second = runtime.optimiser("main", module()), runtime.optimiser("other", module(), learning_rate=0.1)
    assert runtime.first is first and runtime.parameters == 12
    for optimiser in (first, second, second):
        optimiser.gradient[:] = np.nan
        optimiser.step(8)
    assert process.metrics.value("updates") == 1 and process.metrics.value("items") == 8
    assert runtime.read(runtime.figures()) == {"learning_rate": 0.5, "skipped_updates": 2.0, "skipped_in_a_row": 2.0}
    runtime.reset_skips()
    assert runtime.read(runtime.figures())["skipped_in_a_row"] == 0.0
    with pytest.raises(ValueError, match="its own name"):
        runtime.optimiser("main", module())


def test_what_runs_see_of_the_two_libraries_has_the_same_form() -> None:
    engine, by_torch = EngineRuntime(CONFIG), LearnerRuntime(CONFIG, CPU)
    engine.optimiser("main", module())
    by_torch.optimiser("main", torch.nn.Linear(3, 2, bias=False))
    runtimes: list[Backend] = [engine, by_torch]
    for runtime in runtimes:
        assert (runtime.place, runtime.precision, runtime.parameters) == ("cpu", "float32", 6)
        assert runtime.read(runtime.figures()).keys() == {"learning_rate", "skipped_updates", "skipped_in_a_row"}
    by_torch.load_state(engine.state())
    engine.load_state({name: value.numpy() for name, value in by_torch.state().items()})
