"""The queue of a sweep: asks Optuna for trials, and tells it how each ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import cast

from deploy.studies.jobs import Job, Say
from deploy.studies.sweep.plan import Plan
from deploy.studies.sweep.study import Study, Trial
from deploy.studies.sweep.trial import StartRun, TrialJob, TrialResult, settings_line
from transport.text import ProgressReport

FAILURES_IN_A_ROW = 5  # after which the sweep ends: the settings that it chose are hardly the cause
OVER = ("complete", "pruned", "failed")


class Sweeper:
    """Queues the trials that an earlier process did not end, then new ones."""

    def __init__(self, plan: Plan, study: Study, start: StartRun, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        """`say` gets one line for each event."""
        self._plan, self._study, self._start, self._say, self._clock = plan, study, start, say, clock
        self._running = self._failures = 0
        self._last_fault = ""
        self._before = self.done  # trials of earlier processes
        self._progress = ProgressReport(plan.config.trials - self._before, clock=clock)
        if again := study.repeat():
            listed = ", ".join(map(str, again))
            say(f"{'trial' if len(again) == 1 else 'trials'} {listed} had not ended; the same settings are tried again")

    @property
    def done(self) -> int:
        """The number of trials that are over."""
        return sum(trial.state in OVER for trial in self._study.trials())

    def next(self, place: int) -> TrialJob | None:
        """See Queue."""
        if self.done + self._running >= self._plan.config.trials:
            return None
        suggestion = self._study.begin()
        self._running += 1
        self._say(f"trial {suggestion.number} begins: {settings_line(suggestion.values)}")
        start = partial(self._start, suggestion, place=place)
        return TrialJob(self._plan, self._study, suggestion, start, self._end, self._clock)

    def reason_to_end(self) -> str:
        if self._failures < FAILURES_IN_A_ROW:
            return ""
        failed = f"{self._failures} trials in a row have failed, the last one: {self._last_fault}"
        return f"{failed}; `{self._plan.command}` resumes it"

    def abandoned(self, jobs: list[Job]) -> None:
        """Their trials are tried again when the sweep is resumed."""
        trials = cast(list[TrialJob], jobs)
        self._study.repeat([job.suggestion.number for job in trials])
        for job in trials:
            if job.run is not None:
                job.run.remove()

    def _end(self, job: TrialJob, result: TrialResult) -> None:
        """Records the end of a trial, and says it."""
        number, config = job.suggestion.number, self._plan.config
        self._running -= 1
        self._study.end(number, result.state, {"runs": result.runs, "reason": result.reason}, result.value)
        failed = result.state == "failed"
        self._failures, self._last_fault = (self._failures + 1, result.reason) if failed else (0, "")
        best, done = self._study.best(), self.done
        count = f"{done} of {config.trials}{self._progress.left(done - self._before)}"
        if failed:
            self._say(f"trial {number} failed: {result.reason} · {count}")
        elif result.state == "pruned":
            seconds, last = sum(run["seconds"] for run in result.runs), result.runs[-1]["evaluations"][-1][2]
            self._say(f"trial {number} pruned after {seconds:.0f} s: {config.objective} {last:,.4g} · {count}")
        else:
            so_far = f"; best so far: trial {best.number}, {shown(self._plan, best)}" if best else ""
            (trial,) = (each for each in self._study.trials() if each.number == number)
            self._say(f"trial {number} ended: {shown(self._plan, trial)}{so_far} · {count}")


def shown(plan: Plan, trial: Trial) -> str:
    """The value of a complete trial, in words."""
    config = plan.config
    if config.time_to is None:
        return f"{config.objective} {trial.value:,.4g}"
    missed = [run for run in trial.result["runs"] if not run["reached"]]
    if missed and config.seeds == 1:
        return f"{config.objective} {config.time_to:g} not reached"
    more = f" ({len(missed)} of {config.seeds} runs not)" if missed else ""
    return f"{config.objective} {config.time_to:g} after {trial.value:,.1f} s{more}"
