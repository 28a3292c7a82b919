"""`python -m benchmarks.pipeline.stand_in RUN_DIR`: the learner with its loop and feed, around an update that does nothing."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch

from learner.config import read_settings
from learner.loop import Learner
from learner.throughput_line import describe
from learner.updates.base import Outcome, Transitions, Update
from learner.updates.runtime import LearnerRuntime
from transport.lifetime import Lifetime
from transport.run_dir import RunDir


class Nothing:
    """An update that learns nothing and gives random priorities."""

    def __init__(self, update: Update, runtime: LearnerRuntime) -> None:
        self.modules, self.counters, self._runtime = update.modules, update.counters, runtime

    def update(self, batch: Transitions) -> Outcome:
        self._runtime.stepped(self._runtime.first, len(batch.action))
        return Outcome({"loss": torch.zeros((), device=self._runtime.device)}, torch.rand(len(batch.action)))


def play(path: str) -> None:
    run_dir = RunDir(Path(path))
    settings, spec = read_settings(run_dir)
    life = Lifetime("learner", run_dir, partial(describe, figures={}))
    learner = Learner(settings, spec, run_dir, life)
    learner.update = Nothing(learner.update, learner.runtime)
    learner.run()
    life.close()


if __name__ == "__main__":
    play(*sys.argv[1:])
