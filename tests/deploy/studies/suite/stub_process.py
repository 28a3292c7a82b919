"""The processes of a stub: `train FOLDER HOLD STATUS` writes policies, `act` pushes to one side.

They import little: a test starts many of them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from actors.evaluation.lines import add_line

POLICIES = 3


def train(folder: Path, hold: str, status: str) -> None:
    for number in range(1, POLICIES + 1):
        (folder / f"policy-{number}").write_text("1")
        add_line(folder / "snapshots.jsonl", {"file": f"policy-{number}", "seconds": float(number), "steps": 100 * number})
    while hold and not Path(hold).exists():
        time.sleep(0.02)
    sys.exit(int(status))


def act() -> None:
    import numpy as np

    from actors.evaluation.pipe import Act, serve

    def load(path: str) -> Act:
        action = int(Path(path).read_text())
        return lambda observation: np.full(len(observation), action)

    serve(load, sys.stdin.buffer, sys.stdout.buffer)


def main(word: str, *words: str) -> None:
    if word == "train":
        folder, hold, status = words
        train(Path(folder), hold, status)
    else:
        act()


if __name__ == "__main__":
    main(*sys.argv[1:])
