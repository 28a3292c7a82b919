"""`python -m benchmarks.learner.watched RUN_DIR SECONDS`: the learner itself, with a profiler.

Once it is warm it is timed for SECONDS; then the profiler records some updates. Prints its figures as JSON and ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.learner.kernels import Profile
from benchmarks.learner.workloads import warm_up_updates
from learner.config import read_settings
from learner.loop import Learner
from learner.throughput_line import describe
from transport.lifetime import Lifetime
from transport.run_dir import RunDir

PROFILED_UPDATES = 40


class Watch:
    """Counts every update, just after it was handed to the device."""

    def __init__(self, learner: Learner, seconds: float) -> None:
        self._learner, self._seconds = learner, seconds
        self._profile = Profile(learner.device, PROFILED_UPDATES)
        self._updates, self._begun, self._first = 0, 0.0, 0
        self.found: dict[str, Any] = {}

    def count(self) -> None:
        """One update more."""
        self._updates += 1
        if self._updates == warm_up_updates(self._learner.device.type):
            self._begun, self._first = time.monotonic(), self._updates
        elif self._begun and "updates" not in self.found:
            elapsed = time.monotonic() - self._begun
            if elapsed >= self._seconds:
                self.found = {
                    "updates": (self._updates - self._first) / elapsed,
                    "precision": self._learner.runtime.first.precision,
                }
                self.found |= memory(self._learner.device)
                self._profile.start()
        elif "updates" in self.found and self._profile.step():
            self.found |= self._profile.figures()
            os.kill(os.getpid(), signal.SIGTERM)  # the loop ends as it always does


def memory(device: torch.device) -> dict[str, float]:
    """The most that tensors took on the device so far, and what torch reserved, in MB; empty where that is unknown."""
    if device.type not in ("cuda", "xpu"):
        return {}
    module = getattr(torch, device.type)
    bytes_of = {"peak": module.max_memory_allocated(device), "reserved": module.max_memory_reserved(device)}
    return {f"device memory, {name}": value / 1e6 for name, value in bytes_of.items()}


def main() -> int:
    """Set up, then the learner's loop."""
    run_dir, seconds = RunDir(Path(sys.argv[1])), float(sys.argv[2])
    try:
        settings, spec = read_settings(run_dir)
        life = Lifetime("learner", run_dir, partial(describe, figures={}))
        learner = Learner(settings, spec, run_dir, life)
        watch, count = Watch(learner, seconds), life.metrics.count

        def counting(name: str, amount: float = 1) -> None:
            count(name, amount)
            if name == "updates":
                watch.count()

        life.metrics.count = counting  # type: ignore[method-assign]
        learner.run()
    except (ValueError, OSError, MemoryError) as error:
        print(error, flush=True)
        return 2
    life.close()
    print(json.dumps(watch.found), flush=True)
    sys.stdout.flush()
    os._exit(0)  # a compiler's threads, if there are any, are not waited for


if __name__ == "__main__":
    sys.exit(main())
