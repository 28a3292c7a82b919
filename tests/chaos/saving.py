"""`python -m tests.chaos.saving FOLDER KILLS`: a writer of checkpoints, killed so many times.

What it is to show is printed as one line of JSON. In a process of its own since it forks: each writer is one that has torch
imported already.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np

from learner.weights.checkpoint import Checkpoints, write_listed
from learner.weights.manifest import read_manifest

SIZE = 100_000  # floats of a checkpoint
KEPT = 3


def save(folder: Path, epochs: Iterator[int], told: int) -> None:
    """Checkpoint after checkpoint, as a learner writes them; tells of each once it is written."""
    checkpoints = Checkpoints(folder, KEPT)
    for epoch in epochs:
        weights, about = {"x": np.full(SIZE, epoch, np.float32)}, {"epoch": str(epoch), "policy_version": str(epoch)}
        checkpoints.write(epoch, weights, about)
        os.write(told, epoch.to_bytes(8, "little"))
        write_listed(folder / "latest.safetensors", weights, about)


def main() -> int:
    """Kills at random moments; counts what a learner that starts then would find."""
    folder, kills = Path(sys.argv[1]), int(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    seen = dict.fromkeys(("kills", "inside a file", "not in the manifest", "lost", "wrong", "complaints"), 0)
    generator = random.Random(0)
    next_epoch = 1
    for _ in range(kills):
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            save(folder, count(next_epoch), writes)
        os.close(writes)
        time.sleep(generator.uniform(0.0, 0.06))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reads, "rb") as told:
            written = int.from_bytes(told.read()[-8:], "little")
        seen["kills"] += 1
        seen["inside a file"] += bool(list(folder.glob(".epoch-*.partial")))
        newest = Checkpoints(folder, KEPT)
        known = read_manifest(folder) or {}
        seen["not in the manifest"] += any(path.name not in known for path in newest.paths()[:1])
        complaints: list[str] = []
        found = newest.newest(complaints.append)
        seen["complaints"] += sum("yet" not in complaint for complaint in complaints)
        if found is None:
            seen["lost"] += written > 0
            continue
        epoch = int(found[2]["epoch"])
        seen["lost"] += epoch < written
        seen["wrong"] += found[0].stem != f"epoch-{epoch:010d}" or not (found[1]["x"] == epoch).all()
        next_epoch = epoch + 1
    print(json.dumps(seen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
