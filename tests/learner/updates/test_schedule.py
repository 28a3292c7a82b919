from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from learner.config import LearnerConfig
from learner.engine.module import Module
from learner.engine.runtime import EngineRuntime
from learner.parallel.base import Group
from learner.updates.runtime import LearnerRuntime
from learner.updates.schedule import Collected, share
from tests.learner.examples import CPU

FALLING = LearnerConfig(learning_rate=0.5, learning_rate_schedule="linear", learning_rate_end=0.2, schedule_steps=1_000)


@pytest.mark.parametrize(
    ("schedule", "end", "expected"),
    [
        ("constant", 0.0, [1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", 0.0, [1.0, 0.75, 0.5, 0.0, 0.0]),
        ("linear", 0.2, [1.0, 0.8, 0.6, 0.2, 0.2]),
        ("cosine", 0.0, [1.0, 0.8535534, 0.5, 0.0, 0.0]),
        ("cosine", 0.5, [1.0, 0.9267767, 0.75, 0.5, 0.5]),
    ],
)
def test_the_rate_falls_to_its_end_and_stays_there(schedule: Any, end: float, expected: list[float]) -> None:
    config = LearnerConfig(learning_rate_schedule=schedule, learning_rate_end=end, schedule_steps=1_000)
    assert [share(config, steps) for steps in (0, 250, 500, 1_000, 5_000)] == pytest.approx(expected)


def test_steps_are_counted_on_when_replay_or_the_learner_is_started_again() -> None:
    collected = Collected()
    seen = []
    for counts in ([], [100, 50], [120, 90], [120, 10], [150, 30]):  # the second shard is started again in between
        collected.follow(counts)
        seen.append(collected.steps)
    assert seen == [0, 150, 210, 220, 270]
    resumed = Collected()
    resumed.load_state(collected.state())
    resumed.follow([160, 30])
    assert resumed.steps == 280, "replay has lived on"
    resumed.load_state(collected.state())
    resumed.follow([5, 0])
    assert resumed.steps == 275, "replay has been started again, too"
    resumed.load_state([3_000, 1_000, 2_000])
    for counts in ([1_050, 0], [1_100, 2_100]):  # a learner that was started again hears of one shard after the other
        resumed.follow(counts)
    assert resumed.steps == 3_200
    resumed.load_state([])  # of a checkpoint without any
    assert resumed.state() == [0]


class Second(Group):
    """One of two processes; it has heard of fewer steps than rank 0, which has counted 500."""

    rank, size = 1, 2

    def total(self, number: int) -> int:
        return 500 + number


@pytest.mark.parametrize("runtime", [LearnerRuntime(FALLING, CPU), EngineRuntime(FALLING)])
def test_the_schedule_multiplies_what_the_algorithm_makes_of_its_rates(runtime: Any) -> None:
    def module(size: int) -> Any:
        if runtime.library == "torch":
            return torch.nn.Linear(size, 1)
        return Module({"weight": np.zeros((1, size), np.float32)}, ("weight",))

    runtime.optimisers.clear()
    first, second = runtime.optimiser("main", module(2)), runtime.optimiser("other", module(3), learning_rate=0.01)
    runtime.follow_schedule([500])
    assert (first.learning_rate, second.learning_rate) == pytest.approx((0.3, 0.006))
    first.scale_learning_rate(0.5)
    assert (first.learning_rate, second.learning_rate) == pytest.approx((0.15, 0.006))
    runtime.follow_schedule([1_000])
    assert (first.learning_rate, second.learning_rate) == pytest.approx((0.05, 0.002))
    if runtime.library == "torch":
        assert [group["lr"] for group in first.adam.param_groups] == pytest.approx([0.05])


def test_all_processes_of_a_group_have_the_rate_of_the_first() -> None:
    runtime = LearnerRuntime(FALLING, CPU, Second())
    only = runtime.optimiser("main", torch.nn.Linear(2, 1))
    runtime.follow_schedule([100])
    assert only.learning_rate == pytest.approx(0.3)
