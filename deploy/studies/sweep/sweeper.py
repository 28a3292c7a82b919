"""The loop of a sweep: it begins trials, ends bad ones early and records how each ended. How a run is made is injected."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from deploy.statistics import time_to_score
from deploy.studies.sweep.plan import Plan
from deploy.studies.sweep.study import POINTS, State, Study, Suggestion, Trial
from transport.text import ProgressReport

FAILURES_IN_A_ROW = 5  # after which the sweep ends: the settings that it chose are hardly the cause
OVERTIME_SECONDS = 600.0  # beyond its time, for start and end: a run that takes longer is stopped
STOP_SECONDS = 120.0  # after which a run that was asked to stop is killed
TURN_SECONDS = 0.2
OVER = ("complete", "pruned", "failed")
REACHED, PRUNED = "reached", "pruned"


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
        """What it has done so far."""

    def stop(self) -> None:
        """Asks it to stop in order."""

    def kill(self) -> None:
        """Ends it at once."""

    def remove(self) -> None:
        """Deletes its files. Only after its end."""


class StartRun(Protocol):
    def __call__(self, suggestion: Suggestion, index: int, place: int) -> TrialRun:
        """Starts the run number `index` of a trial, of as many as there are seeds, in a `place` from 0 to jobs - 1."""


@dataclass
class Active:
    """A trial that is under way. Its runs follow one another."""

    suggestion: Suggestion
    place: int
    run: TrialRun
    began: float
    results: list[dict[str, Any]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)  # of the runs that have ended
    point: int = 0  # the last one reported
    verdict: str = ""  # why the run was asked to stop, if it was: REACHED, PRUNED, or a fault
    asked: float = 0.0  # and when


class Sweeper:
    """Call `run`, or `turn` until `finished`."""

    def __init__(
        self,
        plan: Plan,
        study: Study,
        jobs: int,
        start: StartRun,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Queues the trials that an earlier process did not end. `say` gets one line for each event."""
        self._plan, self._study, self._jobs, self._start = plan, study, jobs, start
        self._say, self._clock, self._pause = say, clock, pause
        self._active: list[Active] = []
        self._failures, self._last_fault = 0, ""
        self._before = self.done  # trials of earlier processes
        self._progress = ProgressReport(plan.config.trials - self._before, clock=clock)
        self.reason = ""  # why it ended early; empty while there is no reason
        self.interrupted = False
        if again := study.repeat():
            say(f"{'trial' if len(again) == 1 else 'trials'} {_listed(again)} had not ended; the same settings are tried again")

    @property
    def done(self) -> int:
        """Trials that are over."""
        return sum(trial.state in OVER for trial in self._study.trials())

    @property
    def finished(self) -> bool:
        """Whether nothing runs any more, and nothing more is to be started."""
        return not self._active and (bool(self.reason) or self.done >= self._plan.config.trials)

    def run(self, signals: list[int]) -> None:
        """Until all trials are over, or something arrives in `signals`, which interrupts the sweep; a second one kills."""
        while not self.finished:
            if signals:
                return self.interrupt(signals)
            self.turn()
            self._pause(TURN_SECONDS)

    def turn(self) -> None:
        """Looks at every run, and begins trials where there is room."""
        for active in list(self._active):
            self._attend(active)
        if self._failures >= FAILURES_IN_A_ROW and not self.reason:
            failed = f"{self._failures} trials in a row have failed, the last one: {self._last_fault}"
            self.reason = f"{failed}; `{self._plan.command}` resumes it"
            self._stop_all()
        while not self.reason and len(self._active) < self._jobs and self.done + len(self._active) < self._plan.config.trials:
            self._begin()

    def interrupt(self, signals: list[int]) -> None:
        """Stops all runs in order; their trials are tried again when the sweep is resumed."""
        signals.clear()
        self.interrupted, self.reason = True, "interrupted"
        if self._active:
            self._say("stopping: the trials under way are tried again when the sweep is resumed (Ctrl-C again kills at once)")
        self._stop_all(signals)

    def _stop_all(self, signals: list[int] | None = None) -> None:
        """Stops all runs and waits for them; kills them after a while, or when `signals` has something."""
        for active in self._active:
            active.run.stop()
        deadline = self._clock() + STOP_SECONDS
        while any(not active.run.look().ended for active in self._active):
            if signals or self._clock() >= deadline:
                for active in self._active:
                    active.run.kill()
            self._pause(TURN_SECONDS)
        self._study.repeat([active.suggestion.number for active in self._active])
        for active in self._active:
            active.run.remove()
        self._active.clear()

    def _begin(self) -> None:
        suggestion = self._study.begin()
        place = min(set(range(self._jobs)) - {active.place for active in self._active})
        self._say(f"trial {suggestion.number} begins: {settings_line(suggestion.values)}")
        run = self._start(suggestion, 0, place)
        self._active.append(Active(suggestion, place, run, self._clock()))

    def _attend(self, active: Active) -> None:
        view = active.run.look()
        if view.ended:
            return self._run_ended(active, view)
        if active.verdict:
            if self._clock() - active.asked > STOP_SECONDS:
                active.run.kill()
            return
        limit = self._plan.seconds + OVERTIME_SECONDS
        if self._plan.seconds and self._clock() - active.began > limit:
            return self._stop(active, f"it has not ended {OVERTIME_SECONDS:.0f} s after its time")
        if self._reached(view.evaluations) is not None:
            return self._stop(active, REACHED)
        self._report(active, view)

    def _stop(self, active: Active, verdict: str) -> None:
        active.verdict, active.asked = verdict, self._clock()
        active.run.stop()

    def _report(self, active: Active, view: View) -> None:
        """Tells Optuna how the trial is doing, at most once for each point of its run; has it stopped if it is to be pruned."""
        point = min(int(view.progress * POINTS), POINTS)
        if not view.evaluations or point <= active.point:
            return
        active.point = point
        value = self._mean(view.evaluations) * (1 if self._plan.config.time_to is None else -1)
        step, last = len(active.results) * POINTS + point, self._plan.config.seeds * POINTS
        if self._study.report(active.suggestion.number, step, value) and step < last:
            self._stop(active, PRUNED)

    def _run_ended(self, active: Active, view: View) -> None:
        """Takes the result of a run; the trial goes on with its next seed, or is over."""
        reached = self._reached(view.evaluations)
        fault = view.fault if active.verdict in ("", REACHED, PRUNED) else active.verdict
        if not fault and not view.evaluations:
            fault = "no evaluation was done in its time: give it more, or raise evaluator.core_share or lower evaluator.episodes"
        value = None if not view.evaluations else self._mean(view.evaluations)
        if self._plan.config.time_to is not None:
            value = self._plan.seconds if reached is None else reached
        active.results.append(
            {
                "run": active.run.name,
                "seed": active.run.seed,
                "seconds": round(view.seconds, 1),
                "value": value,
                "reached": None if self._plan.config.time_to is None else reached is not None,
                "evaluations": [[round(each.seconds, 1), each.steps, each.value] for each in view.evaluations],
            }
        )
        if fault:
            return self._over(active, "failed", reason=fault)
        if active.verdict == PRUNED:
            return self._over(active, "pruned")
        assert value is not None
        active.values.append(value)
        if len(active.results) < self._plan.config.seeds:
            active.run = self._start(active.suggestion, len(active.results), active.place)
            active.began, active.point, active.verdict = self._clock(), 0, ""
            return
        self._over(active, "complete", value=sum(active.values) / len(active.values))

    def _over(self, active: Active, state: State, value: float | None = None, reason: str = "") -> None:
        number = active.suggestion.number
        self._active.remove(active)
        self._study.end(number, state, {"runs": active.results, "reason": reason}, value)
        self._failures, self._last_fault = (self._failures + 1, reason) if state == "failed" else (0, "")
        best, done = self._study.best(), self.done
        count = f"{done} of {self._plan.config.trials}{self._progress.left(done - self._before)}"
        so_far = f"; best so far: trial {best.number}, {shown(self._plan, best)}" if best else ""
        seconds = sum(result["seconds"] for result in active.results)
        if state == "failed":
            self._say(f"trial {number} failed: {reason} · {count}")
        elif state == "pruned":
            last = active.results[-1]["evaluations"][-1][2]
            self._say(f"trial {number} pruned after {seconds:.0f} s: {self._plan.config.objective} {last:,.4g} · {count}")
        else:
            self._say(f"trial {number} ended: {shown(self._plan, self._trial(number))}{so_far} · {count}")

    def _trial(self, number: int) -> Trial:
        return next(trial for trial in self._study.trials() if trial.number == number)

    def _mean(self, evaluations: list[Evaluation]) -> float:
        """Of the last evaluations."""
        last = evaluations[-self._plan.config.evaluations :]
        return sum(each.value for each in last) / len(last)

    def _reached(self, evaluations: list[Evaluation]) -> float | None:
        """The time to the wanted figure; None where it was not reached, or none is wanted."""
        wanted = self._plan.config.time_to
        if wanted is None:
            return None
        seconds, values = [each.seconds for each in evaluations], [each.value for each in evaluations]
        return time_to_score(seconds, values, wanted, self._plan.config.evaluations)


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
    """learner.learning_rate 0.0003, algorithm.hidden 128."""
    return ", ".join(f"{key} {value_text(value)}" for key, value in values.items())


def value_text(value: Any) -> str:
    """A setting, short."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
