"""Trains the policies of the zoo, which come with Headrace: `python -m benchmarks.learning.zoo [NAME …]`, forty minutes in all.

Each is a run with no flag but --env, stopped after some minutes; its best weights are measured by 100 episodes and exported with
their card to headrace/zoo/. A policy that is there already is kept; so the command goes on where it was stopped.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from deploy.children import child_environment, python_command
from deploy.views.sharing.named import FOLDER, SUFFIX

EPISODES = 100


class Entry(NamedTuple):
    env: str
    train: str  # --stop-after


ENTRIES = {
    "cartpole": Entry("CartPole-v1", "20s"),
    "acrobot": Entry("Acrobot-v1", "40s"),
    "pendulum": Entry("Pendulum-v1", "90s"),
    "mountaincar": Entry("MountainCarContinuous-v0", "30s"),
    "lunarlander": Entry("LunarLander-v3", "4m"),
    "bipedalwalker": Entry("BipedalWalker-v3", "6m"),
    "robot": Entry("robot", "6m"),
    "snake": Entry("snake", "10m"),
    "hopper": Entry("Hopper-v5", "10m"),
}


def make(name: str, entry: Entry, folder: Path) -> None:
    """Raises CalledProcessError."""

    def headrace(*words: str) -> None:
        print("headrace", *words, flush=True)
        subprocess.run(python_command("deploy.cli.main", *words), cwd=folder, env=child_environment(), check=True)

    headrace("up", "--env", entry.env, "--run", name, "--stop-after", entry.train, "--seed", "1", "--deploy.verbosity", "events")
    headrace("eval", name, "--best", "--episodes", str(EPISODES))
    headrace("export", name, str(FOLDER / f"{name}{SUFFIX}"), "--best")


def main(names: list[str]) -> int:
    if unknown := set(names) - set(ENTRIES):
        print(f"there is no {', '.join(sorted(unknown))}: name some of {', '.join(ENTRIES)}", file=sys.stderr)
        return 2
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="headrace-zoo-") as folder:
        for name in names or ENTRIES:
            if not (FOLDER / f"{name}{SUFFIX}").is_file():
                make(name, ENTRIES[name], Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
