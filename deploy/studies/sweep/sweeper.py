"""The trials of a sweep: its queue, which gets them from Optuna and reports their results to it, and each trial as a job.

How a run is made is injected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from deploy.statistics import time_to_score
from deploy.studies.jobs import Job, Queue, Say
from deploy.studies.sweep.plan import Plan
from deploy.studies.sweep.study import POINTS, State, Study, Suggestion, Trial
from transport.text import ProgressReport

FAILURES_IN_A_ROW = 5  # after which the sweep ends: the settings that it chose are hardly the cause
OVERTIME_SECONDS = 600.0  # beyond its time, for start and end: a run that takes longer is stopped
NO_EVALUATION = "no evaluation was done in its time: give it more, or raise evaluator.core_share or lower evaluator.episodes"
REACHED, PRUNED = "reached", "pruned"  # why a run was stopped that has not failed
OVER = ("complete", "pruned", "failed")


class Evaluation(NamedTuple):
    """One measurement of the run's policy."""

    seconds: float  # since the first step
    steps: int
    value: float


class View(NamedTuple):
    """The state of a run. `progress`: the share of its time or steps, 0 to 1. `fault`: why it failed, once it has ended."""

    evaluations: list[Evaluation]
    progress: float = 0.0
    seconds: float = 0.0  # since the first step
    ended: bool = False
    fault: str = ""


class TrialRun(Protocol):
    """One run of a trial."""

    name: str
    seed: int

    def look(self) -> View:
        """Its state now."""

    def stop(self) -> None:
        """Asks it to stop in order."""

    def kill(self) -> None:
        """Ends it at once."""

    def remove(self) -> None:
        """Deletes its files. Only after its end."""


# Starts run INDEX of a trial, which has one run for each seed, in a place from 0 to jobs - 1.
StartRun = Callable[[Suggestion, int, int], TrialRun]


class TrialJob(Job):
    """Its runs have the seeds of the plan, one after the other."""

    def __init__(self, sweeper: Sweeper, suggestion: Suggestion, place: int) -> None:
        super().__init__()
        self.suggestion, self.place, self.clock = suggestion, place, sweeper.clock
        self._sweeper, self._plan, self._study = sweeper, sweeper.plan, sweeper.study
        self.results: list[dict[str, Any]] = []
        self._point = 0  # the last one reported of this run
        self.run: TrialRun | None = None

    @property
    def running(self) -> bool:
        return self.run is not None and not self.run.look().ended

    def stop(self) -> None:
        if self.run is not None:
            self.run.stop()

    def kill(self) -> None:
        if self.run is not None:
            self.run.kill()

    def work(self) -> Iterator[None]:
        values: list[float] = []
        for index in range(self._plan.config.seeds):
            self.run, self._point = self._sweeper.start(self.suggestion, index, self.place), 0
            verdict = yield from self._until_ended(self.run)
            view = self.run.look()
            value = self._record(self.run, view)
            asked = verdict in (REACHED, PRUNED)  # then it does not matter how it ended
            fault = "" if asked else verdict or view.fault
            if not fault and not view.evaluations:
                fault = NO_EVALUATION
            if fault:
                return self._sweeper.ended(self, "failed", reason=fault)
            if verdict == PRUNED:
                return self._sweeper.ended(self, "pruned")
            assert value is not None
            values.append(value)
        self._sweeper.ended(self, "complete", sum(values) / len(values))

    def _until_ended(self, run: TrialRun) -> Generator[None, None, str]:
        """Returns why the run was stopped: REACHED, PRUNED or a fault; empty if it ended by itself."""
        began = self.clock()
        while not (view := run.look()).ended:
            if verdict := self._verdict(view, self.clock() - began):
                yield from self.until_stopped()
                return verdict
            yield
        return ""

    def _verdict(self, view: View, seconds: float) -> str:
        """The reason to stop the run now: REACHED, PRUNED or a fault; empty if it goes on. Reports to Optuna, at most
        once for each point of the run."""
        if self._plan.seconds and seconds > self._plan.seconds + OVERTIME_SECONDS:
            return f"it has not ended {OVERTIME_SECONDS:.0f} s after its time"
        if self._reached(view.evaluations) is not None:
            return REACHED
        point = min(int(view.progress * POINTS), POINTS)
        if not view.evaluations or point <= self._point:
            return ""
        self._point = point
        value = self._mean(view.evaluations) * (1 if self._plan.config.time_to is None else -1)
        step, last = len(self.results) * POINTS + point, self._plan.config.seeds * POINTS
        return PRUNED if self._study.report(self.suggestion.number, step, value) and step < last else ""

    def _record(self, run: TrialRun, view: View) -> float | None:
        """Keeps the result of a run that has ended; returns its value."""
        timed, reached = self._plan.config.time_to is not None, self._reached(view.evaluations)
        value = self._mean(view.evaluations) if view.evaluations else None
        if timed:
            value = self._plan.seconds if reached is None else reached
        self.results.append(
            {
                "run": run.name,
                "seed": run.seed,
                "seconds": round(view.seconds, 1),
                "value": value,
                "reached": reached is not None if timed else None,
                "evaluations": [[round(each.seconds, 1), each.steps, each.value] for each in view.evaluations],
            }
        )
        return value

    def _mean(self, evaluations: Sequence[Evaluation]) -> float:
        """The mean of the last evaluations."""
        last = evaluations[-self._plan.config.evaluations :]
        return sum(each.value for each in last) / len(last)

    def _reached(self, evaluations: Sequence[Evaluation]) -> float | None:
        """The time to the wanted figure; None where it was not reached, or none is wanted."""
        wanted = self._plan.config.time_to
        if wanted is None:
            return None
        seconds, values = [each.seconds for each in evaluations], [each.value for each in evaluations]
        return time_to_score(seconds, values, wanted, self._plan.config.evaluations)


class Sweeper(Queue):
    """Queues the trials that an earlier process did not end, then new ones."""

    def __init__(self, plan: Plan, study: Study, start: StartRun, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        """`say` gets one line for each event."""
        self.plan, self.study, self.start, self.clock, self._say = plan, study, start, clock, say
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
        return sum(trial.state in OVER for trial in self.study.trials())

    def next(self, place: int) -> TrialJob | None:
        """See Queue."""
        if self.done + self._running >= self.plan.config.trials:
            return None
        suggestion = self.study.begin()
        self._running += 1
        self._say(f"trial {suggestion.number} begins: {settings_line(suggestion.values)}")
        return TrialJob(self, suggestion, place)

    def reason_to_end(self) -> str:
        if self._failures < FAILURES_IN_A_ROW:
            return ""
        failed = f"{self._failures} trials in a row have failed, the last one: {self._last_fault}"
        return f"{failed}; `{self.plan.command}` resumes it"

    def abandoned(self, jobs: list[Job]) -> None:
        """Their trials are tried again when the sweep is resumed."""
        trials = cast(list[TrialJob], jobs)
        self.study.repeat([job.suggestion.number for job in trials])
        for job in trials:
            if job.run is not None:
                job.run.remove()

    def ended(self, job: TrialJob, state: State, value: float | None = None, reason: str = "") -> None:
        """Records the end of a trial, and says it. `value`: that of a complete one; `reason`: that of a failed one."""
        number, config, runs = job.suggestion.number, self.plan.config, job.results
        self._running -= 1
        self.study.end(number, state, {"runs": runs, "reason": reason}, value)
        self._failures, self._last_fault = (self._failures + 1, reason) if state == "failed" else (0, "")
        best, done = self.study.best(), self.done
        count = f"{done} of {config.trials}{self._progress.left(done - self._before)}"
        if state == "failed":
            self._say(f"trial {number} failed: {reason} · {count}")
        elif state == "pruned":
            seconds, last = sum(run["seconds"] for run in runs), runs[-1]["evaluations"][-1][2]
            self._say(f"trial {number} pruned after {seconds:.0f} s: {config.objective} {last:,.4g} · {count}")
        else:
            so_far = f"; best so far: trial {best.number}, {shown(self.plan, best)}" if best else ""
            (trial,) = (each for each in self.study.trials() if each.number == number)
            self._say(f"trial {number} ended: {shown(self.plan, trial)}{so_far} · {count}")


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


def settings_line(values: Mapping[str, Any]) -> str:
    """Such as: learner.learning_rate 0.0003, algorithm.hidden 128."""
    return ", ".join(f"{key} {value_text(value)}" for key, value in values.items())


def value_text(value: Any) -> str:
    """A setting, short."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
