"""`python -m benchmarks.learner.rollout_writer RUN_DIR`: writes rollouts to a replay server as its credit allows, until stopped.

The recording's chunks as they are; what the actions were chosen by is said to be chance, and its version one of the future, so
that no rollout is too old.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import numpy as np

from benchmarks.replay.roles import PATIENCE_SECONDS, connect
from benchmarks.replay.sources import chunks_by_slices, first_rows, load_circle
from benchmarks.replay.wire import ACTIONS
from learner.algorithms.ppo.config import LOG_PROB
from replay.client.writer import ExperienceWriter
from transport.experience import read_spec
from transport.lifetime import new_incarnation
from transport.run_dir import RunDir
from transport.system import keep_memory

STREAMS = 16
FUTURE = 1_000_000_000


def write(run_dir: RunDir) -> None:
    """Set up, then one loop."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    spec = read_spec(run_dir.spec.read_bytes())
    recording, columns = load_circle(run_dir.path / "recording")
    rows = len(columns["reward"])
    columns = columns | {
        LOG_PROB: np.full(rows, -np.log(ACTIONS), np.float32),
        "policy_version": np.full(rows, FUTURE, np.int32),
    }
    chunks = chunks_by_slices(spec, recording, columns, first_rows(recording, 0, STREAMS))
    writer = ExperienceWriter(connect(run_dir), "writer-0", new_incarnation(), spec, STREAMS)
    while not stopped:
        if writer.has_credit:
            writer.insert(next(chunks))
        writer.poll(0 if writer.has_credit else PATIENCE_SECONDS)
    writer.close()


if __name__ == "__main__":
    keep_memory()
    write(RunDir(Path(sys.argv[1])))
