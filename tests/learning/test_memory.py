"""A corridor whose cue is shown once, 30 steps back: solved with a memory, and at chance without. Runs of minutes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headrace
from headrace.corridor import Corridor
from tests.learning.test_learning import headrace as command

CORRIDOR = "--env headrace.corridor:Corridor --device cpu --run corridor"
REMEMBERING = [
    pytest.param("--algo ppo --algorithm.memory lstm --total-steps 100_000", id="ppo-lstm"),
    pytest.param("--algo ppo --algorithm.memory gru --total-steps 120_000", id="ppo-gru"),
    pytest.param("--algo r2d2 --total-steps 50_000", id="r2d2"),
]
FORGETTING = [
    pytest.param("--algo ppo --total-steps 100_000", id="ppo"),
    pytest.param("--algo dqn --total-steps 50_000 --actors 2 --envs-per-actor 8", id="dqn"),
]


def success(folder: Path, options: str) -> float:
    """The share of 200 episodes that open the right door, after a run."""
    command(folder, "up", *f"{CORRIDOR} {options}".split(), seconds=900)
    told = command(folder, "eval", "corridor", "--episodes", "200", "--json", seconds=300)
    return float(json.loads(told.splitlines()[-1])["success_rate"])


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("options", REMEMBERING)
def test_with_a_memory_the_corridor_is_solved_and_a_loaded_policy_remembers(options: str, tmp_path: Path) -> None:
    assert success(tmp_path, options) > 0.95
    policy, env, right = headrace.load(tmp_path / "runs" / "corridor"), Corridor(), 0.0
    command(tmp_path, "export", "corridor", "corridor.safetensors", seconds=60)
    exported, same = headrace.load(tmp_path / "corridor.safetensors"), True
    for seed in range(40):
        seen, _ = env.reset(seed=seed)
        for each in (policy, exported):
            each.reset()
        ended = False
        while not ended:
            action = policy.predict(seen)
            same &= action == exported.predict(seen)
            seen, reward, ended, _, _ = env.step(action)
            right += reward
    assert right > 36 and same


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("options", FORGETTING)
def test_without_one_the_corridor_stays_at_chance(options: str, tmp_path: Path) -> None:
    assert 0.35 < success(tmp_path, options) < 0.65
