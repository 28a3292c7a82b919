"""`python -m benchmarks.learning.interrupted`: does a run that is killed and resumed learn as much as one that is left alone?

For each seed it trains twice, for the same number of environment steps. The one run is left alone. The supervisor of the other is
killed by SIGKILL, which ends all of its processes, at equal distances in steps, and the run is resumed each time. Both are then
evaluated greedily on the same episodes, with the newest weights and with the best. A finished run is one file in --results; the
same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.report import say
from deploy import provenance, runs
from deploy.children import child_environment, python_command
from deploy.studies.jobs import JobRunner, ProcessJob, Queue
from deploy.studies.suite import evidence
from transport.run_dir import RunDir

RESULTS = Path(__file__).parent / "results" / "interrupted"
KINDS = ("alone", "interrupted")
WEIGHTS: dict[str, list[str]] = {"newest": [], "best": ["--best"]}
LONGEST_SECONDS = 300.0  # without a new step
RESAMPLES = 20_000


class Training(ProcessJob):
    """One run of a seed, until it has its steps; then its evaluations, and its result in a file."""

    def __init__(self, path: Path, seed: int, kind: str, asked: argparse.Namespace) -> None:
        super().__init__()
        self._path, self._seed, self._kind, self._asked = path, seed, kind, asked

    def work(self) -> Iterator[None]:
        asked = self._asked
        say(f"{asked.env}, seed {self._seed}, {self._kind}")
        with tempfile.TemporaryDirectory(prefix="headrace-interrupted-") as name:
            folder, begun, killed_at = Path(name), time.time(), list[int]()
            run, kills = RunDir(folder / "runs" / "it"), asked.kills if self._kind == "interrupted" else 0
            for number in range(1, kills + 2):
                yield from self._until(folder, run, asked.steps * number // (kills + 1) if number <= kills else None)
                if number <= kills:
                    killed_at.append(runs.read_steps(run))
            trained = {"seconds": time.time() - begun, "steps": runs.read_steps(run), "killed_at": killed_at}
            found = {weights: self._evaluate(folder, flags) for weights, flags in WEIGHTS.items()}
        about = {"env": asked.env, "seed": self._seed, "kind": self._kind, "asked_steps": asked.steps, "episodes": asked.episodes}
        origin = {"machine": provenance.machine(), "commit": provenance.commit(), "versions": provenance.versions()}
        evidence.write(self._path, {**about, **trained, "evaluation": found, **origin})

    def _until(self, folder: Path, run: RunDir, until: int | None) -> Iterator[None]:
        """Starts or resumes the run, and kills its supervisor after `until` steps, if it is given."""
        rest = ("--run", "it", "--seed", str(self._seed), "--total-steps", str(self._asked.steps))
        command = python_command("deploy.cli.main", "up", "--env", self._asked.env, *rest)
        with (folder / "log.txt").open("a") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=child_environment())
        seen, changed = runs.read_steps(run), time.monotonic()
        while self.running and (until is None or seen < until):
            yield
            if (now := runs.read_steps(run)) != seen:
                seen, changed = now, time.monotonic()
            if time.monotonic() - changed > LONGEST_SECONDS:
                raise SystemExit(f"no new step for {LONGEST_SECONDS:.0f} s: {log.name}")
        ended = self.process.poll()
        self.kill()
        if ended or (ended is not None and until is not None):
            raise SystemExit(f"`headrace up` ended with {ended}: {(folder / 'log.txt').read_text()[-1000:]}")

    def _evaluate(self, folder: Path, weights: list[str]) -> dict[str, Any]:
        command = python_command("deploy.cli.main", "eval", "it", "--episodes", str(self._asked.episodes), "--json", *weights)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=child_environment())
        if done.returncode:
            raise SystemExit(f"`headrace eval` failed: {done.stderr.strip()[-1000:]}")
        return dict(json.loads(done.stdout.splitlines()[-1]))


class Trainings(Queue):
    """The queue: what has no result yet."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self._asked = asked
        self._left = [(seed, kind) for seed in range(1, asked.seeds + 1) for kind in KINDS]

    def next(self, place: int) -> Training | None:
        while self._left:
            seed, kind = self._left.pop(0)
            path = self._asked.results / f"{self._asked.env}-{kind}-{seed}.json".lower().replace("/", "-")
            if not path.exists():
                return Training(path, seed, kind, self._asked)
            check(path, self._asked)
        return None


def check(path: Path, parsed: argparse.Namespace) -> None:
    """Ends the command where a result was made with other values: it must not be averaged with new ones."""
    found = json.loads(path.read_text())
    wanted = {"asked_steps": parsed.steps, "episodes": parsed.episodes}
    if found["kind"] == "interrupted":
        wanted["kills"], found["kills"] = parsed.kills, len(found["killed_at"])
    if other := [f"{name} {found[name]:,}, not {value:,}" for name, value in wanted.items() if found[name] != value]:
        raise SystemExit(f"{path} was made with {other[0]}: give the same, or another folder of --results")


def report(results: Path, env: str) -> list[str]:
    """The difference of interrupted runs from those left alone, over seeds that have both."""
    found = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    by_kind = {kind: {each["seed"]: each for each in found if each["env"] == env and each["kind"] == kind} for kind in KINDS}
    seeds = sorted(set(by_kind["alone"]) & set(by_kind["interrupted"]))
    lines = [f"{env}: seeds {', '.join(map(str, seeds)) or 'none'}"]
    for weights in WEIGHTS if len(seeds) > 1 else ():
        alone, broken = (
            np.array([by_kind[kind][seed]["evaluation"][weights]["return_mean"] for seed in seeds]) for kind in KINDS
        )
        drawn = np.random.default_rng(0).integers(len(seeds), size=(RESAMPLES, len(seeds)))
        low, high = np.quantile((broken - alone)[drawn].mean(1), [0.025, 0.975])
        width = (high - low) / abs(alone.mean())
        lines.append(
            f"  {weights:7} alone {alone.mean():.1f}, interrupted {broken.mean():.1f}: difference {(broken - alone).mean():.1f}, "
            f"95 % interval {low:.1f} to {high:.1f}, as wide as {width:.1%} of the score"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.interrupted", description=__doc__)
    parser.add_argument("--env", default="CartPole-v1", help="environment (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=400_000, help="environment steps of each run (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=5, help="times that a run is killed (default: %(default)s)")
    parser.add_argument("--episodes", type=int, default=100, help="episodes of an evaluation (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="where the results are kept")
    parser.add_argument("--report", action="store_true", help="only report what is there")
    parsed = parser.parse_args()
    parsed.results.mkdir(parents=True, exist_ok=True)
    if not parsed.report:
        JobRunner(Trainings(parsed), say).run([])
    print("\n".join(report(parsed.results, parsed.env)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
