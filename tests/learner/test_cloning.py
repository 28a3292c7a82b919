"""Policies that imitate demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from actors.agent import Agent
from actors.datasets.base import Episode, Space
from actors.datasets.chunks import write_segment
from actors.envs.foreign.actions import plain_actions
from actors.envs.spec import flatten_leaf
from learner.algorithms.base import join, make_algorithm, read_algorithm
from learner.cloning import clone, demonstration_spec, obstacle
from learner.inference.open import open_inference
from learner.networks.describe import describe
from tests.actors.datasets.episodes import Memory, spec_of
from transport.experience import ExperienceSpec, bounded
from transport.run_dir import RunDir

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
REALS = spaces.Box(np.array([-1.0, -2.0], np.float32), np.array([1.0, 3.0], np.float32))
SMALL = {"hidden": 32, "layers": 1}


def expert(action: Space, seen: np.ndarray) -> np.ndarray:
    """What to do on observations [N, 3]."""
    if isinstance(action, spaces.Box):
        return np.stack([np.tanh(seen[:, 0]), 0.5 + 2 * np.tanh(seen[:, 1] - seen[:, 2])], 1).astype(np.float32)
    first = (seen[:, 0] > seen[:, 1]).astype(int)
    return first if isinstance(action, spaces.Discrete) else np.stack([first, (seen[:, 2] > 0) + 0], 1)


def episodes(action: Space, count: int, scale: float) -> list[Episode]:
    random = np.random.default_rng(1)
    found = []
    for _ in range(count):
        seen = (scale * random.normal(size=(21, 3)) + scale).astype(np.float32)
        found.append(Episode({"observation": seen}, expert(action, seen[:-1]), np.zeros(20, np.float32), True))
    return found


def made(action: Space, algorithm: dict[str, Any], stack: int = 1) -> tuple[Any, ExperienceSpec]:
    found = make_algorithm(read_algorithm(algorithm))
    env = spec_of(BOX, action, stack)
    return found, join(env, found.needs(env))


@pytest.mark.parametrize(
    ("action", "algorithm", "stack"),
    [
        (spaces.Discrete(2), {"name": "ppo", **SMALL}, 1),
        (spaces.Discrete(2), {"name": "ppo", **SMALL, "normalize_observation": True}, 3),
        (spaces.MultiDiscrete([2, 2]), {"name": "ppo", **SMALL}, 1),
        (REALS, {"name": "ppo", **SMALL, "normalize_observation": True}, 1),
        (REALS, {"name": "sac", **SMALL}, 1),
        (REALS, {"name": "reppo", "hidden": 32}, 1),
    ],
    ids=["ppo", "ppo stack", "ppo choices", "ppo continuous", "sac", "reppo"],
)
def test_a_policy_imitates_demonstrations(action: Space, algorithm: dict[str, Any], stack: int, tmp_path: Path) -> None:
    learned, spec = made(action, algorithm, stack)
    assert not obstacle(learned, spec)
    scale = 2.0 if algorithm.get("normalize_observation") else 1.0
    run, of = RunDir(tmp_path), (BOX, action)
    run.demonstrations.mkdir()
    found = episodes(action, 60, scale)
    write_segment(run.demonstrations / "0.segment", Memory(found, of), demonstration_spec(spec), of, None)
    lines: list[str] = []
    beats: list[int] = []
    weights = clone(learned, spec, run, 600, 0, lines.append, lambda: beats.append(1))
    assert len(beats) == 12 and "imitates 1,200 steps of demonstrations" in lines[0]
    inference = open_inference(learned, spec, describe(learned.policy(spec)))
    inference.load(weights)
    fresh = episodes(action, 5, scale)
    agent = Agent(spec, learned.acting(spec, inference), 5)
    wrong = []
    for step in range(20):
        seen = flatten_leaf(BOX, np.stack([episode.observations["observation"][step] for episode in fresh]))
        rows = {"observation": spec.field("observation").encode(seen)}
        agent.push(rows, np.zeros(5, bool)) if step else agent.reset(rows)
        chosen = plain_actions(action, bounded(spec, agent.act("greedy")[0]))
        wanted = expert(action, seen)
        wrong.append(np.abs(chosen - wanted).mean() if isinstance(action, spaces.Box) else (chosen != wanted).mean())
    assert np.mean(wrong) < (0.2 if isinstance(action, spaces.Box) else 0.1)


@pytest.mark.parametrize(
    ("action", "algorithm", "reason"),
    [
        (spaces.Discrete(2), {"name": "dqn"}, "no policy"),
        (spaces.Discrete(2), {"name": "r2d2"}, "no policy"),
        (spaces.Discrete(2), {"name": "ppo", "memory": "lstm"}, "memory"),
    ],
)
def test_what_cannot_imitate_says_so(action: Space, algorithm: dict[str, Any], reason: str) -> None:
    assert reason in obstacle(*made(action, algorithm))
