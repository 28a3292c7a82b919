"""`python -m benchmarks.by_hand.bare TASK`: the update as one writes it by hand for a single experiment.

What `headrace bench learner` measures the learner against, on batches that are in memory already: plain torch, the same
arithmetic on networks of the same shapes, the same precision and settings of torch, batches that the same server has drawn, kept
as tensors on the device as they rest. It waits for nothing but the priorities, which a prioritised learner needs on the host; on
a device that computes beside the host they are read an update late.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.by_hand.dqn import DqnLoop
from benchmarks.by_hand.ppo import PpoLoop
from benchmarks.learner.workloads import WORKLOADS, Task
from benchmarks.replay.roles import READY_SECONDS, connect
from replay.client.sampler import Sampler
from transport.lifetime import new_incarnation
from transport.run_dir import RunDir
from transport.system import keep_memory

KEPT = 8  # batches that it goes round
KEPT_BYTES = 1 << 30  # but no more than about this
WARM_UP_UPDATES = 5


def draw(task: Task) -> list[dict[str, np.ndarray]]:
    """A few batches of the server's, copied. Ends the process when none comes."""
    run_dir, workload = RunDir(Path(task.run_dir)), WORKLOADS[task.setting.workload]
    spec = workload.spec()
    size = task.setting.learner().batch_size // (spec.chunk_length if workload.rollouts else 1)
    sampler = Sampler(connect(run_dir), "learner", new_incarnation(), spec, size, 1)
    batches: list[dict[str, np.ndarray]] = []
    while len(batches) < KEPT and sum(array.nbytes for batch in batches for array in batch.values()) < KEPT_BYTES:
        batch = sampler.next(READY_SECONDS)
        if batch is None:
            raise SystemExit(f"no batch within {READY_SECONDS:.0f} s")
        batches.append({name: array.copy() for name, array in batch.arrays.items()})
        sampler.release(batch)
    sampler.close()
    return batches


def measure(loop: DqnLoop | PpoLoop, seconds: float) -> dict[str, float]:
    """Updates per second, and milliseconds of the processor that each takes."""
    while loop.updates < WARM_UP_UPDATES:
        loop.update()
    loop.machine.wait()
    begun, before, cpu = time.monotonic(), loop.updates, time.process_time()
    while time.monotonic() < begun + seconds:
        loop.update()
    loop.machine.wait()
    done, cpu = loop.updates - before, time.process_time() - cpu
    return {"updates": done / (time.monotonic() - begun), "CPU": 1e3 * cpu / done}


def main() -> None:
    """Prints what it has measured."""
    keep_memory()
    task = msgspec.json.decode(sys.argv[1], type=Task)
    batches = draw(task)
    workload, learner = WORKLOADS[task.setting.workload], task.setting.learner()
    loop = (PpoLoop if workload.rollouts else DqnLoop)(learner, workload.algorithm, workload.spec(), batches)  # type: ignore[arg-type]
    print(json.dumps(measure(loop, task.seconds) | {"precision": loop.machine.precision}), flush=True)


if __name__ == "__main__":
    main()
