"""A whole run that learns, with more and more actors: how the steps per second grow."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.learner.workloads import Setting
from benchmarks.pipeline.__main__ import CAPACITY, ENV, MIN_SIZE, OPEN, Bench, Case
from deploy.config.files import Tree, merge

ACTORS = (1, 2, 4, 8, 14)
OTHERS = 2  # processes beside the actors that want a core: replay and the learner
ENVS_PER_ACTOR = 16


def counts() -> list[int]:
    """As many actors as there are cores for, and one at least."""
    room = max((os.cpu_count() or 1) - OTHERS, 1)
    return [count for count in ACTORS if count <= room]


def flags(setting: Setting, count: int) -> Tree:
    """Of a run of the null simulator with DQN and the Nature network. Neither side waits for the other."""
    learner: Tree = {"batch_size": setting.batch, "device": setting.device, "threads": 1, "precision": setting.precision}
    run: Tree = {
        "env": {"id": ENV},
        "algorithm": {"name": "dqn"},
        "actors": {"count": count, "envs_per_actor": ENVS_PER_ACTOR},
        "replay": {"capacity": CAPACITY, "min_size": MIN_SIZE},
        "learner": learner,
    }
    return merge(run, OPEN)


def measure(setting: Setting, count: int, seconds: float) -> dict[str, float]:
    """Rates of a run, and the shares of its processes' time in percent."""
    with tempfile.TemporaryDirectory() as folder:
        measured = Bench(Path(folder), flags(setting, count)).measure(Case(f"{count} actors", "real", {}), seconds)
    actor, learner = measured.shares("actor"), measured.shares("learner")
    return {
        "steps": measured.rate("actor", "steps"),
        "updates": measured.rate("learner", "updates"),
        "items": measured.rate("learner", "items"),
        "data wait": learner["data_wait"],
        "update": learner.get("update", 0.0),
        "act": actor.get("act", 0.0),
    }


def efficiencies(steps: Sequence[float], actors: Sequence[int]) -> list[float]:
    """Of each number of actors: its steps per second and actor over those of the fewest."""
    least = steps[0] / actors[0]
    return [each / count / least for each, count in zip(steps, actors, strict=True)]
