"""`python -m benchmarks.learning.helped`: a lock that chance does not open, learned with and without some minutes of help.

For each seed it trains DQN twice on benchmarks.learning.lock. One run is left alone. In the other somebody who knows the
combination takes over the first environment of an actor, by the messages of the page, for --help-seconds, and hands back.
Both are then evaluated greedily with the newest weights.
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.report import say
from benchmarks.learning.lock import COMBINATION, LENGTH
from deploy import provenance, runs
from deploy.children import child_environment, python_command
from deploy.cli.browser.web import Buttons
from deploy.views.web.server import Steering
from transport.run_dir import RunDir

ROOT = Path(__file__).parents[2]
PAUSE_SECONDS = 0.2
UP = "up --env benchmarks.learning.lock:Lock --algo dqn --actors 2 --run it --fresh"


class Person:
    """Somebody who knows the combination, and presses one key for each picture that they see."""

    def __init__(self, run: RunDir, actor: str = "actor-0") -> None:
        self._run, self._actor, self._number = run, actor, secrets.randbits(48)
        self.steps = self.opened = 0

    def help(self, seconds: float, over: Callable[[], bool]) -> None:
        until, place = time.monotonic() + seconds, None
        while time.monotonic() < until and not over():
            keys = () if place is None else (str(COMBINATION[place]),)
            place = self._press(keys)
            if place is None:  # it is still starting, or has not answered
                time.sleep(PAUSE_SECONDS)
            elif keys:
                self.steps += 1
                self.opened += place == 0 and keys == (str(COMBINATION[LENGTH - 1]),) and self.steps >= LENGTH
        self._press((), ends=True)

    def _press(self, keys: tuple[str, ...], ends: bool = False) -> int | None:
        """The place that the lock is at then; None where the actor cannot be steered now."""
        found = Buttons().steer(self._run, Steering(self._actor, self._number, keys, ends))
        if isinstance(found, str):
            return None
        return int(np.frombuffer(b"".join(found[1]), np.int8).argmax())


def evaluations(run: RunDir) -> list[tuple[float, float]]:
    """Minutes since the first record, and return, of each evaluation during training."""
    records = [json.loads(line) for line in run.metrics("evaluator").read_text().splitlines()]
    known = [one for one in records if one.get("return_mean") is not None]
    began, found = records[0]["time"] if records else 0.0, dict[float, tuple[float, float]]()
    for one in known:
        found.setdefault(one["policy_version"], (round((one["time"] - began) / 60, 1), one["return_mean"]))
    return list(found.values())


def trained(seed: int, helps: bool, asked: argparse.Namespace) -> dict[str, Any]:
    """A run and what it has learned."""
    with tempfile.TemporaryDirectory(prefix="headrace-helped-") as name:
        folder = Path(name)
        run, words = RunDir(folder / "runs" / "it"), [*UP.split(), "--seed", str(seed), "--stop-after", f"{asked.seconds}s"]
        command = python_command("deploy.cli", *words)
        environment = child_environment() | {"PYTHONPATH": str(ROOT)}
        with (folder / "out.txt").open("w") as out:
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT)
            person = Person(run)
            try:
                while process.poll() is None and not (runs.read_steps(run) if run.status.exists() else 0):
                    time.sleep(PAUSE_SECONDS)
                if helps:
                    person.help(asked.help_seconds, lambda: process.poll() is not None)
                process.wait()
            finally:
                process.terminate()
                process.wait()
        if process.returncode:
            raise SystemExit((folder / "out.txt").read_text())
        found = {}
        for weights in ("newest", "best"):
            asks = python_command("deploy.cli", "eval", "it", "--json", "--episodes", "10", *(["--best"] * (weights == "best")))
            answer = subprocess.run(asks, cwd=folder, env=environment, capture_output=True, check=True).stdout
            found[weights] = json.loads(answer)["return_mean"]
        kept = (runs.read_status(run) or {})["replay"]["human_steps"]
        return {
            "seed": seed,
            "helped": helps,
            "return_mean": found,
            "evaluations": evaluations(run),
            "steps": runs.read_steps(run),
            "human_steps": kept,
            "pressed": person.steps,
            "opened": person.opened,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=600, help="of each run")
    parser.add_argument("--help-seconds", type=float, default=300.0, help="from its first step on")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    asked = parser.parse_args()
    found = []
    for seed in range(1, asked.seeds + 1):
        for helps in (False, True):
            found.append(one := trained(seed, helps, asked))
            say(json.dumps(one))
    if asked.out:
        about = {"seconds": asked.seconds, "help_seconds": asked.help_seconds}
        about |= {"machine": provenance.machine(), "commit": provenance.commit(), "versions": provenance.versions()}
        asked.out.write_text(json.dumps(about | {"runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
