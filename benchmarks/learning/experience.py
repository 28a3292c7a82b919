"""Experience that is used again: `python -m benchmarks.learning.experience`, twenty minutes.

A run collects. A second one, with another seed, learns the same with the first one's experience as demonstrations, and a third
without: shown are the environment steps to the score of an evaluation. The best half of the first one's episodes goes out as a
data set of Minari and is read again by Minari's own loader; a fourth run learns from that alone (`--offline`): shown are the
returns of the episodes in the data set, of the policy that collected them, and of the one that learned offline, in 100 episodes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common.processes import headrace
from benchmarks.common.report import Report

EPISODES = 100
DATA = "headrace/data-v0"
TASKS = {  # algorithm, time of a run, score, return of random actions
    "CartPole-v1": ("dqn", "60s", 475.0, 22.2),
    "Pendulum-v1": ("sac", "90s", -200.0, -1_240.9),
    "LunarLander-v3": ("dqn", "180s", 200.0, -184.4),
}


def measure(report: Report, env: str, folder: Path) -> None:
    """Raises CalledProcessError."""
    algorithm, seconds, score, least = TASKS[env]

    def returns(run: str) -> list[float]:
        found = json.loads(headrace(folder, "eval", run, "--best", "--episodes", str(EPISODES), "--json"))
        return list(found["episode_returns"])

    common = ("--env", env, "--algo", algorithm, "--stop-after", seconds, "--deploy.verbosity", "events")
    headrace(folder, "up", *common, "--run", "online")
    for name, more in (("again", ("--replay.demonstrations", "online")), ("fresh", ())):
        headrace(folder, "up", *common, "--run", name, "--seed", "2", "--stop-at-return", str(score), *more)
    steps = {name: json.loads(headrace(folder, "status", name, "--json"))["steps"] for name in ("fresh", "again")}
    report.add(f"{env}, fresh", f"steps to {score:g}, or all", "", [steps["fresh"]])
    report.add(f"{env}, with an old run's experience", f"steps to {score:g}, or all", "", [steps["again"]])
    report.ratio(f"{env}, with an old run's experience", "steps", "fresh", steps["again"] / steps["fresh"])
    headrace(folder, "dataset", "export", "online", "--best", "50%", "--to", "minari", "--out", DATA)
    headrace(folder, "up", *common, "--run", "offline", "--offline", "--replay.demonstrations", f"minari:{DATA}")
    found = {"data set": read(DATA), "online": returns("online"), "offline": returns("offline")}
    means = {name: float(np.mean(values)) for name, values in found.items()}
    for name, values in found.items():
        report.add(f"{env}, {name}, {len(values)} episodes", "return", "", [means[name]])
    for name in ("data set", "online"):
        share = (means["offline"] - least) / (means[name] - least)
        report.ratio(f"{env}, offline", "return above chance", name, share)


def read(name: str) -> list[float]:
    """The returns of the episodes of a data set, by Minari's loader."""
    import minari

    return [float(episode.rewards.sum()) for episode in minari.load_dataset(name).iterate_episodes()]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.experience", description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS), help="default: all")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    arguments = parser.parse_args(words)
    report = Report("experience")
    for env in arguments.tasks:
        with tempfile.TemporaryDirectory(prefix="headrace-experience-") as folder:
            os.environ["MINARI_DATASETS_PATH"] = str(Path(folder) / "minari")
            measure(report, env, Path(folder))
    report.print(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
