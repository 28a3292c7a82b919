"""`headrace sweep`: searches for good settings."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from actors.figures import OBJECTIVES
from deploy.cli.common import DONE, FAILED, REFUSED, add_trust, complain
from deploy.signals import stop_signals
from deploy.studies.jobs import JobRunner, jobs_at_once
from deploy.studies.sweep import folder, results
from deploy.studies.sweep.check import check
from deploy.studies.sweep.plan import Plan, read_plan
from deploy.studies.sweep.study import Study, require_optuna
from deploy.studies.sweep.sweeper import Sweeper
from deploy.studies.sweep.trial_run import Runs, remove_unfinished
from transport.system import core_count, free_memory

DESCRIPTION = """\
Search for good settings: runs of equal length, each with other settings, that Optuna chooses by the results so far.

  headrace sweep lander.toml             start the sweep of this file, or resume it; Ctrl-C stops it
  headrace sweep lander.toml --show      show its trials and the best settings
  headrace up --config sweeps/lander/best.toml

The file has the settings that all trials share, as a run's config.toml has them, and two tables:

  [env]
  id = "LunarLander-v3"

  [sweep]
  trials = 30                # how many are tried
  time = "5m"                # of each, after its first step; or steps = 200_000
  seeds = 1                  # runs of each trial, which differ in their seed; its result is their mean
  objective = "return_mean"  # the evaluator's figure, the mean of its last 3 evaluations; or OTHERS
  # time_to = 200.0          # instead: the time until it is as high as this, in 3 evaluations in a row
  evaluations = 3
  pruner = "median"          # ends trials early that are worse than most were then; or halving, none
  sampler = "tpe"            # or random
  jobs = "auto"              # trials at once: as many as cores and free memory allow

  [search]                   # any setting of a run
  "learner.learning_rate" = {low = 1e-5, high = 1e-2, log = true}
  "algorithm.hidden" = {choices = [64, 128, 256]}
  "algorithm.network_options.layers" = {low = 1, high = 4}
""".replace("OTHERS", ", ".join(OBJECTIVES[1:]))


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("file", type=Path, metavar="FILE.toml", help="the sweep; its trials are kept in ./sweeps/FILE")
    target.add_argument("--show", action="store_true", help="start nothing; show the trials so far, the best first")
    target.add_argument("--json", action="store_true", help="print the trials as JSON, for programs; other lines go to stderr")
    add_trust(target)


def run(parsed: argparse.Namespace) -> int:
    """With --json stdout has the document alone."""
    require_optuna()
    plan = read_plan(parsed.file, parsed.trusted)
    with contextlib.redirect_stdout(sys.stderr) if parsed.json else contextlib.nullcontext():
        if parsed.show:
            folder.check_task(plan)
            study, reason = Study(plan, reading=True), ""
        else:
            try:
                with folder.locked(plan):
                    folder.check_task(plan)
                    study, reason = _search(plan)
            except folder.SweepRunning as error:
                return complain(str(error), REFUSED)
    if parsed.json:
        print(json.dumps(results.document(plan, study), allow_nan=False), flush=True)
    else:
        print(results.table(plan, study), end="")
        if best := results.best_settings(plan, study):
            print(f"\n{best}\nheadrace up --config {plan.folder / results.BEST}")
    return complain(f"sweep {plan.path.stem} failed: {reason}", FAILED) if reason else DONE


def _search(plan: Plan) -> tuple[Study, str]:
    """Starts or resumes the sweep. Returns when all trials are over or it was interrupted, with the reason if it has failed."""
    checked = check(plan)
    free = free_memory()
    jobs = jobs_at_once(plan.config.jobs, core_count(), checked.busy_processes, free, checked.trial_bytes)
    folder.write_task(plan)
    study, starting = Study(checked.plan), Runs(checked.plan, jobs)
    sweeper = Sweeper(checked.plan, study, starting.start, _say)
    runner = JobRunner(sweeper, _say, jobs)
    remove_unfinished(plan, {run["run"] for trial in study.trials() for run in trial.result.get("runs", [])})
    left = plan.config.trials - sweeper.done
    _say(f"sweep {plan.path.stem} in {plan.folder}: {max(left, 0)} trials to do, {jobs} at once · Ctrl-C stops them")
    arrived: list[int] = []
    with stop_signals(lambda number, frame: arrived.append(number)):
        runner.run(arrived)
    results.write_best(plan, study)
    if runner.interrupted:
        done = f"{sweeper.done} of {plan.config.trials} trials are over"
        _say(f"sweep {plan.path.stem} stopped: {done}; `{plan.command}` resumes it")
        return study, ""
    return study, runner.reason or ("" if study.best() else "no trial is complete")


def _say(line: str) -> None:
    print(line, flush=True)
