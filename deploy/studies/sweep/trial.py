"""One trial of a sweep as a job: its runs follow one another, and Optuna may have it end early. How a run is made is injected."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from deploy.statistics import time_to_score
from deploy.studies.jobs import Job
from deploy.studies.sweep.plan import Plan
from deploy.studies.sweep.study import POINTS, State, Study, Suggestion

OVERTIME_SECONDS = 600.0  # beyond its time, for start and end: a run that takes longer is stopped
NO_EVALUATION = "no evaluation was done in its time: give it more, or raise evaluator.core_share or lower evaluator.episodes"
REACHED, PRUNED = "reached", "pruned"  # why a run was stopped that has not failed


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


class StartRun(Protocol):
    def __call__(self, suggestion: Suggestion, index: int, place: int) -> TrialRun:
        """Starts the run number `index` of a trial, of as many as there are seeds, in a `place` from 0 to jobs - 1."""


class TrialResult(NamedTuple):
    """The end of a trial. `runs`: what the record keeps of each; `value` is given where it is complete."""

    state: State
    runs: list[dict[str, Any]]
    value: float | None = None
    reason: str = ""


class TrialJob(Job):
    """Its runs have the seeds of the plan, one after the other."""

    def __init__(
        self,
        plan: Plan,
        study: Study,
        suggestion: Suggestion,
        start: Callable[[int], TrialRun],
        on_end: Callable[[TrialJob, TrialResult], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start` starts the run of that index."""
        super().__init__()
        self.suggestion, self.clock = suggestion, clock
        self._plan, self._study, self._start, self._on_end = plan, study, start, on_end
        self._results: list[dict[str, Any]] = []
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
            self.run, self._point = self._start(index), 0
            verdict = yield from self._until_ended(self.run)
            view = self.run.look()
            value = self._record(self.run, view)
            fault = view.fault if verdict in ("", REACHED, PRUNED) else verdict
            if not fault and not view.evaluations:
                fault = (
                    "no evaluation was done in its time: give it more, or raise evaluator.core_share or lower evaluator.episodes"
                )
            if fault:
                return self._on_end(self, TrialResult("failed", self._results, reason=fault))
            if verdict == PRUNED:
                return self._on_end(self, TrialResult("pruned", self._results))
            assert value is not None
            values.append(value)
        self._on_end(self, TrialResult("complete", self._results, sum(values) / len(values)))

    def _until_ended(self, run: TrialRun) -> Generator[None, None, str]:
        """Returns why the run was stopped: REACHED, PRUNED or a fault; empty if it ended by itself."""
        began, verdict = self.clock(), ""
        while not run.look().ended:
            if verdict := self._verdict(run.look(), self.clock() - began):
                yield from self.until_stopped()
                break
            yield
        return verdict

    def _verdict(self, view: View, seconds: float) -> str:
        """Why the run should be stopped now; empty if it should not. Tells Optuna how the trial is doing, at most once for each
        point of its run."""
        if self._plan.seconds and seconds > self._plan.seconds + OVERTIME_SECONDS:
            return f"it has not ended {OVERTIME_SECONDS:.0f} s after its time"
        if self._reached(view.evaluations) is not None:
            return REACHED
        point = min(int(view.progress * POINTS), POINTS)
        if not view.evaluations or point <= self._point:
            return ""
        self._point = point
        value = self._mean(view.evaluations) * (1 if self._plan.config.time_to is None else -1)
        step, last = len(self._results) * POINTS + point, self._plan.config.seeds * POINTS
        return PRUNED if self._study.report(self.suggestion.number, step, value) and step < last else ""

    def _record(self, run: TrialRun, view: View) -> float | None:
        """Keeps the result of a run that has ended; returns its value."""
        timed, reached = self._plan.config.time_to is not None, self._reached(view.evaluations)
        value = self._mean(view.evaluations) if view.evaluations else None
        if timed:
            value = self._plan.seconds if reached is None else reached
        self._results.append(
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


def settings_line(values: Mapping[str, Any]) -> str:
    """Such as: learner.learning_rate 0.0003, algorithm.hidden 128."""
    return ", ".join(f"{key} {value_text(value)}" for key, value in values.items())


def value_text(value: Any) -> str:
    """A setting, short."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
