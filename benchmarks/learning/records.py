"""What an ordinary PC learns: `python -m benchmarks.learning.records [NAME …]` trains the records that are missing.

A record is one command for each of its seeds, with nothing beside it, and then evaluations of its best weights. A finished run is
one file in records/: the command, every evaluation on the way, those at the end, machine and commit. The policy of the first seed
goes into the zoo with its card. The same command goes on with the runs that are missing; a run that was broken off begins anew.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common.processes import headrace
from deploy import provenance, runs
from deploy.studies.suite import evidence
from deploy.views.sharing.named import FOLDER, SUFFIX
from transport.run_dir import RunDir

RESULTS = Path(__file__).parent / "records"
KEPT = ("policy_version", "episodes", "return_mean", "score_mean", "success_rate")  # of an evaluation on the way


class Record(NamedTuple):
    """What is trained, for how long, and how its best weights are evaluated."""

    about: str
    beside: str  # what others have published
    metric: str  # of the curve: return, score or success
    up: str  # arguments of `headrace up`
    train: str  # --stop-after
    seeds: tuple[int, ...]
    evaluations: Mapping[str, str]  # arguments of `headrace eval`, by what is shown


ARM = "--episodes 1000 --tolerances 0.02,0.01,0.005"
MARIO = {"stochastic": "--episodes 100 --stochastic", "greedy": "--episodes 100"}
RECORDS = {
    # Physics costs nine tenths of the time and changes nothing: what is learned without it does as well with it.
    "arm": Record(
        "A robot arm to half a centimetre, anywhere in its workspace",
        "No other benchmark of reaching goes below 2 cm in the whole workspace of an arm.",
        "success",
        "--env robot:flat --env.backend kinematic --env.tolerance 0.005 --evaluator.episodes 50",
        "15m",
        (1, 2, 3),
        {"PyBullet": f"{ARM} --env.backend pybullet", "without physics": ARM},
    ),
    "snake": Record(
        "Snake on 10x10, to the full board",
        "elichen/perfect_snake (PPO with convolutions): all boards full after 6 million steps, then between 70 and 100 %; no "
        "time is published.",
        "score",
        "--env snake --evaluator.episodes 50",
        "30m",
        (1, 2, 3),
        {"greedy": "--episodes 200"},
    ),
    # Without the larger share an evaluation has one of Pong's long episodes.
    "pong": Record(
        "Pong (ALE) from pixels, with sticky actions",
        "PQN (Gallici et al. 2024): less than 5 minutes, but on an A40 and 32 cores. rl-zoo's PPO: 20.989 after 10 million "
        "steps, without sticky actions.",
        "score",
        "--env ALE/Pong-v5 --evaluator.core-share 0.3",
        "60m",
        (1,),
        {"greedy": "--episodes 100"},
    ),
    "mario": Record(
        "Super Mario Bros. 1-1, from pixels to the flag",
        "GradLab (PPO): 96 of 100 episodes at 4.0 million steps, stochastic; no time is published.",
        "success",
        "--env mario",
        "60m",
        (1, 2),
        MARIO,
    ),
    "mario-1-2": Record(
        "Super Mario Bros. 1-2, the underground level",
        "GradLab (PPO): 97 of 100 episodes at 7.5 million steps, stochastic; no time is published.",
        "success",
        "--env mario:1-2",
        "60m",
        (1,),
        MARIO,
    ),
    "mario-4-1": Record(
        "Super Mario Bros. 4-1, in which an enemy throws others from a cloud",
        "GradLab (PPO): 97 of 100 episodes at 7.5 million steps, stochastic; no time is published.",
        "success",
        "--env mario:4-1",
        "30m",
        (1,),
        MARIO,
    ),
    "mario-levels": Record(
        "Super Mario Bros. 1-1, 1-2 and 4-1 by one policy",
        "GradLab (PPO), with a policy for each level: 96, 97 and 97 of 100, stochastic (here: greedy); no time is published.",
        "success",
        "--env mario:1-1,1-2,4-1",
        "90m",
        (1,),
        {"all": "--episodes 100"} | {level: f"--episodes 100 --env mario:{level}" for level in ("1-1", "1-2", "4-1")},
    ),
}


def train(name: str, seed: int, record: Record, path: Path) -> None:
    """One run and its evaluations. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="headrace-record-") as made:
        folder = Path(made)
        up = f"up {record.up} --run {name} --seed {seed} --stop-after {record.train}"
        origin = {"machine": provenance.machine(), "commit": provenance.commit(), "versions": provenance.versions()}
        began, began_at = time.time(), evidence.now()
        headrace(folder, *shlex.split(up), "--deploy.verbosity", "events")
        seconds = time.time() - began
        run = RunDir(folder / "runs" / name)
        found = {
            kind: json.loads(headrace(folder, "eval", name, "--best", *shlex.split(words), "--json").splitlines()[-1])
            for kind, words in record.evaluations.items()
        }
        if seed == record.seeds[0]:
            headrace(folder, "export", name, str(FOLDER / f"{name}{SUFFIX}"), "--best")
        document = {
            "command": f"headrace {up}",
            "evaluated": {kind: f"headrace eval {name} --best {words}" for kind, words in record.evaluations.items()},
            "seed": seed,
            "began": began_at,
            "seconds": seconds,
            "steps": runs.read_steps(run),
            **origin,
            "curve": curve(run, began),
            "evaluations": found,
        }
    evidence.write(path, document)


def curve(run: RunDir, began: float) -> list[dict[str, Any]]:
    """Every evaluation of the run's evaluator: seconds since the start of the command, and KEPT."""
    points: dict[int, dict[str, Any]] = {}
    with run.metrics("evaluator").open() as lines:
        for line in map(json.loads, lines):
            if line.get("episodes") and line["policy_version"] not in points:
                point = {"seconds": round(line["time"] - began, 1)} | {key: line[key] for key in KEPT if key in line}
                points[line["policy_version"]] = point
    return list(points.values())


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.records", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"records to train (default: all of {', '.join(RECORDS)})")
    arguments = parser.parse_args(words)
    if unknown := set(arguments.names) - set(RECORDS):
        parser.error(f"there is no record {min(unknown)}: name some of {', '.join(RECORDS)}")
    RESULTS.mkdir(exist_ok=True)
    for name in arguments.names or RECORDS:
        for seed in RECORDS[name].seeds:
            path = RESULTS / f"{name}-{seed}.json"
            if not path.is_file():
                train(name, seed, RECORDS[name], path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
