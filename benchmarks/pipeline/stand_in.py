"""`python -m benchmarks.pipeline.stand_in RUN_DIR UPDATE`: takes the learner's place in `headrace bench pipeline`.

UPDATE is `none`: the learner itself, with its loop and its feed, and an update that does nothing; or a number of milliseconds:
the same with an update that copies the batch and sleeps that long.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from learner.config import LearnerSettings, read_settings
from learner.loop import Learner
from learner.throughput_line import describe
from learner.updates.base import Outcome, Transitions, Update
from learner.updates.runtime import LearnerRuntime
from transport.experience import ExperienceSpec
from transport.lifetime import Lifetime
from transport.run_dir import RunDir


class Nothing:
    """An update that learns nothing and gives random priorities."""

    def __init__(self, update: Update, runtime: LearnerRuntime) -> None:
        self.modules, self.counters, self._runtime = update.modules, update.counters, runtime

    def update(self, batch: Transitions) -> Outcome:
        self._runtime.stepped(self._runtime.first, len(batch.action))
        return Outcome({"loss": torch.zeros((), device=self._runtime.device)}, torch.rand(len(batch.action)))


class Pause(Nothing):
    """It also sleeps, as a host does while its accelerator computes.

    Where the learner computes on the CPU, which reads a batch in replay's own slot, the observations are first copied to other
    memory, as an accelerator would need.
    """

    def __init__(self, update: Update, runtime: LearnerRuntime, seconds: float) -> None:
        super().__init__(update, runtime)
        self._seconds = seconds
        self._memory: dict[str, Tensor] = {}

    def update(self, batch: Transitions) -> Outcome:
        for name, rows in batch.observation.items():
            if rows.device.type == "cpu":
                self._memory.setdefault(name, torch.empty_like(rows)).copy_(rows)
        if self._seconds:
            time.sleep(self._seconds)
        return super().update(batch)


def learn(settings: LearnerSettings, spec: ExperienceSpec, run_dir: RunDir, life: Lifetime, update: str) -> None:
    """The learner's loop around an update that learns nothing."""
    learner = Learner(settings, spec, run_dir, life)
    if update == "none":
        learner.update = Nothing(learner.update, learner.runtime)
    else:
        learner.update = Pause(learner.update, learner.runtime, float(update) / 1000)
    learner.run()


def play(path: str, update: str) -> None:
    """Set up, then the loop."""
    run_dir = RunDir(Path(path))
    settings, spec = read_settings(run_dir)
    life = Lifetime("learner", run_dir, partial(describe, figures={}))
    learn(settings, spec, run_dir, life, update)
    life.close()


if __name__ == "__main__":
    play(*sys.argv[1:])
