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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from deploy.children import child_environment, python_command
from deploy.reporting.status_file import read_document
from deploy.studies.suite import evidence
from transport.run_dir import RunDir

RESULTS = Path(__file__).parent / "results" / "interrupted"
KINDS = ("alone", "interrupted")
WEIGHTS: dict[str, list[str]] = {"newest": [], "best": ["--best"]}
POLL_SECONDS = 0.1
LONGEST_SECONDS = 300.0  # without a new step
RESAMPLES = 20_000


def steps_of(run: RunDir) -> int:
    with suppress(OSError):
        return int((read_document(run.status.read_bytes()) or {}).get("steps") or 0)
    return 0


def train(folder: Path, env: str, seed: int, steps: int, kills: int) -> dict[str, Any]:
    """Trains to `steps`, and kills the run so many times on the way. Returns what it took."""
    begun, killed_at = time.time(), []
    for number in range(1, kills + 2):
        ended, seen = part(folder, env, seed, steps, steps * number // (kills + 1) if number <= kills else None)
        if ended is None:
            killed_at.append(seen)
        elif ended or number <= kills:
            last = (folder / "log.txt").read_text()[-1000:]
            raise SystemExit(f"`headrace up` ended with {ended} after {len(killed_at)} of {kills} kills: {last}")
    return {"seconds": time.time() - begun, "steps": seen, "killed_at": killed_at}


def part(folder: Path, env: str, seed: int, steps: int, until: int | None) -> tuple[int | None, int]:
    """Starts or resumes the run; kills its supervisor after `until` steps. Returns its exit status, None if it was killed, and
    its steps."""
    command = [*python_command("deploy.cli.main"), "up", "--env", env, "--run", "it", "--seed", str(seed)]
    with (folder / "log.txt").open("a") as log:
        process = subprocess.Popen(
            [*command, "--total-steps", str(steps)], cwd=folder, stdout=log, stderr=log, env=child_environment()
        )
    run = RunDir(folder / "runs" / "it")
    seen, changed = steps_of(run), time.monotonic()
    try:
        while process.poll() is None and (until is None or seen < until):
            time.sleep(POLL_SECONDS)
            if (now := steps_of(run)) != seen:
                seen, changed = now, time.monotonic()
            if time.monotonic() - changed > LONGEST_SECONDS:
                raise SystemExit(f"no new step for {LONGEST_SECONDS:.0f} s: {log.name}")
    finally:
        ended = process.poll()
        process.kill()
        process.wait()
    return ended, steps_of(run)


def evaluate(folder: Path, episodes: int, weights: Sequence[str]) -> dict[str, Any]:
    command = [*python_command("deploy.cli.main"), "eval", "it", "--episodes", str(episodes), "--json", *weights]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=child_environment())
    if done.returncode:
        raise SystemExit(f"`headrace eval` failed: {done.stderr.strip()[-1000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def one(path: Path, env: str, seed: int, kind: str, parsed: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="headrace-interrupted-") as name:
        folder = Path(name)
        trained = train(folder, env, seed, parsed.steps, parsed.kills if kind == "interrupted" else 0)
        found = {weights: evaluate(folder, parsed.episodes, flags) for weights, flags in WEIGHTS.items()}
    facts = {"env": env, "seed": seed, "kind": kind, "asked_steps": parsed.steps, "episodes": parsed.episodes}
    origin = {"machine": evidence.machine(), "commit": evidence.commit(), "versions": evidence.versions()}
    evidence.write(path, {**facts, **trained, "evaluation": found, **origin})


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
    runs = [(seed, kind) for seed in range(1, parsed.seeds + 1) for kind in KINDS]
    for number, (seed, kind) in enumerate(runs, 1):
        path = parsed.results / f"{parsed.env}-{kind}-{seed}.json".lower().replace("/", "-")
        if parsed.report:
            continue
        if path.exists():
            check(path, parsed)
            continue
        print(f"{number} of {len(runs)}: {parsed.env}, seed {seed}, {kind}", file=sys.stderr)
        one(path, parsed.env, seed, kind, parsed)
    print("\n".join(report(parsed.results, parsed.env)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
