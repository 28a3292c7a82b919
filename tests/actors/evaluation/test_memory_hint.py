"""The hint that a memory may help: where it comes, and where it must not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors.evaluation import memory_hint
from actors.evaluation.memory_hint import MemoryHint


class Task:
    """Evaluations of 20 episodes of 10 steps each, on a clock of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, state: dict[str, tuple[int, ...]], discrete: bool = False) -> None:
        self.seconds = 0.0
        monkeypatch.setattr(memory_hint, "time", SimpleNamespace(monotonic=lambda: self.seconds))
        spec: Any = SimpleNamespace(is_single_discrete=discrete)
        policy: Any = SimpleNamespace(state=state)
        self._hint = MemoryHint(spec, policy)
        self._random = np.random.default_rng(0)

    def evaluate(self, return_mean: float, repeating: bool = True, success_rate: float | None = None) -> str:
        self.seconds += 20.0
        for _ in range(20):
            for step in range(10):
                seen = np.zeros((2, 1, 3), np.float32) if repeating else self._random.normal(size=(2, 1, 3)).astype(np.float32)
                self._hint.step({"vector": seen}, np.full(2, step == 0))
        figures = {"return_mean": return_mean, "return_std": 1.0, "episodes": 20, "success_rate": success_rate}
        return self._hint.evaluated(figures)


CHANCE = [0.1, -0.1, 0.2, 0.0, -0.2, 0.1, 0.0, 0.1, -0.1, 0.2]


def test_it_comes_once_where_returns_stay_and_observations_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(monkeypatch, {})
    said = [text for mean in CHANCE if (text := task.evaluate(mean))]
    assert len(said) == 1 and "--algo r2d2" in said[0] and "--algorithm.memory lstm" in said[0] and "90%" in said[0]


@pytest.mark.parametrize(
    "case",
    [
        {"state": {"memory": (4,)}},  # the policy has one
        {"discrete": True},  # Taxi, FrozenLake: the observation is the state
        {"repeating": False},  # CartPole
        {"rises": True},  # Snake
        {"success_rate": 0.9},  # it was solved at once
    ],
)
def test_it_does_not_come_where_a_memory_is_not_what_is_missing(monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]) -> None:
    task = Task(monkeypatch, case.get("state", {}), case.get("discrete", False))
    for number, mean in enumerate(CHANCE):
        returned = mean + number if case.get("rises") else mean
        assert not task.evaluate(returned, case.get("repeating", True), case.get("success_rate"))
