"""One run of a trial: a `headrace up` in the sweep's folder, as a child process, and what it has measured."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w

from actors.trust import FLAG
from deploy import runs
from deploy.children import child_environment, python_command
from deploy.places.child import Child
from deploy.studies.sweep.plan import Plan
from deploy.studies.sweep.study import Suggestion
from deploy.studies.sweep.sweeper import Evaluation, View
from transport.files.documents import LineDecoder, read_bytes
from transport.files.writing import write_atomically
from transport.lifetime import PARENT_VARIABLE
from transport.run_dir import RunDir
from transport.system import core_count, own_cores

RUNS, SETTINGS = "runs", "settings"  # in the sweep's folder
ERROR = "headrace: "  # begins the error line of the command
LOOK_SECONDS = 0.5  # between two readings of its files

records_in = LineDecoder(dict[str, Any])


class Runs:
    """Starts the runs of a sweep. Trials at once share the cores evenly, so that each has as much as the others; they share the
    quota of a container as the system lets them."""

    def __init__(self, plan: Plan, jobs: int) -> None:
        self._plan = plan
        cores = own_cores()
        each = max(len(cores) // jobs, 1)
        bound = jobs > 1 and core_count() == len(cores)  # a quota needs no bond: others would choose the same cores
        self._cores = [cores[place * each : (place + 1) * each] if bound else [] for place in range(jobs)]
        for name in (RUNS, SETTINGS):
            (plan.folder / name).mkdir(parents=True, exist_ok=True)

    def start(self, suggestion: Suggestion, index: int, place: int) -> ChildRun:
        """See StartRun."""
        plan, name = self._plan, f"trial-{suggestion.number}"
        if plan.config.seeds > 1:
            name += f"-seed-{index + 1}"
        path = plan.folder / SETTINGS / f"{name}.toml"
        write_atomically(path, tomli_w.dumps(plan.settings(suggestion.values)).encode())
        seed = plan.first_seed + index
        return ChildRun(plan, RunDir(plan.folder / RUNS / name), path, seed, self._cores[place])


class ChildRun:
    """A TrialRun that ends with this process, however that ends."""

    def __init__(self, plan: Plan, run: RunDir, settings: Path, seed: int, cores: Sequence[int]) -> None:
        """Starts it. Raises OSError."""
        self.name, self.seed = run.name, seed
        self._plan, self._run = plan, run
        self._error = ""
        self._view = View([])
        self._next_look = 0.0
        self._first_step: float | None = None  # wall-clock
        up = ["up", "--run", run.name, "--config", str(settings), "--seed", str(seed)]
        up += ["--stop-after", f"{plan.seconds}s"] if plan.seconds else []
        up += ["--total-steps", str(plan.config.steps)] if plan.config.steps else []
        up += [FLAG] if plan.trusted else []
        command = python_command("deploy.cli.trial", str(run.path.parent), ",".join(map(str, cores)), *up)
        environment = child_environment(**{PARENT_VARIABLE: str(os.getpid())})
        self._child = Child(run.name, command, environment, self._take)

    def look(self) -> View:
        """Reads its files at most twice a second; what it wrote last is read after its end."""
        if self._view.ended or (time.monotonic() < self._next_look and self._child.poll() is None):
            return self._view
        self._next_look = time.monotonic() + LOOK_SECONDS
        ended = self._child.poll()  # asked first
        status = runs.read_status(self._run) or {}
        steps = int(status.get("steps") or 0)
        if self._first_step is None and steps:
            self._first_step = float(status["time"])
        seconds = (
            0.0 if self._first_step is None else max((float(status["time"]) if ended else time.time()) - self._first_step, 0.0)
        )
        seconds = min(seconds, self._plan.seconds or seconds)  # without the time that it takes to stop
        done = [seconds / self._plan.seconds] if self._plan.seconds else []
        done += [steps / self._plan.config.steps] if self._plan.config.steps else []
        self._view = View(self._evaluations(steps), max(done), seconds, ended is not None)
        if ended is not None:
            shutil.rmtree(self._run.segments, ignore_errors=True)  # the experience: by far the largest files of a run
            if ended.code:
                fault = self._error or str(status.get("reason") or "") or ended.reason
                self._view = self._view._replace(fault=" ".join(fault.split()))
        return self._view

    def stop(self) -> None:
        self._child.ask()

    def kill(self) -> None:
        self._child.kill()

    def remove(self) -> None:
        remove(self._run)

    def _take(self, name: str, line: str) -> None:
        """A line of its output; called from another thread."""
        if line.startswith(ERROR):
            self._error = line.removeprefix(ERROR)

    def _evaluations(self, steps: int) -> list[Evaluation]:
        """Those before, and the new ones of the evaluator's records. They count as done at `steps` steps."""
        known = self._view.evaluations
        found = evaluations(self._run.metrics("evaluator"), self._plan.config.objective)
        first = self._first_step or 0.0
        new = [Evaluation(max(when - first, 0.0), steps, value) for when, value in found[len(known) :]]
        return [*known, *new]


def evaluations(path: Path, figure: str) -> list[tuple[float, float]]:
    """When each evaluation was recorded, and its figure. The evaluator repeats its newest one in every record."""
    try:
        lines = read_bytes(path).splitlines()
    except OSError:
        return []
    found, before = [], None
    for record in records_in(lines):
        version, value = record.get("policy_version"), record.get(figure)
        if version == before or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        before = version
        found.append((float(record["time"]), float(value)))
    return found


def remove_unfinished(plan: Plan, kept: set[str]) -> None:
    """Deletes the runs of a sweep that was killed whose trials are tried again; `kept` are the names of the others."""
    for path in (plan.folder / RUNS).glob("trial-*"):
        if path.name not in kept:
            remove(RunDir(path))


def remove(run: RunDir) -> None:
    """Deletes a run that has ended. What cannot be deleted stays: its name is not used again."""
    with suppress(OSError):
        run.remove_sockets()
        runs.remove(run)
    with suppress(OSError):
        run.lock.unlink()
