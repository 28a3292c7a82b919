"""A sweep whose runs are made up: what a run would measure follows from its settings, and time passes when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from deploy.studies.jobs import JobRunner
from deploy.studies.sweep.plan import Plan, read_plan
from deploy.studies.sweep.study import Study, Suggestion
from deploy.studies.sweep.sweeper import Evaluation, Sweeper, View

SECONDS, EVALUATIONS = 100.0, 10
STEPS_PER_SECOND = 50
FILE = """
[env]
id = "CartPole-v1"

[sweep]
time = "100s"
{sweep}

[search]
"algorithm.gamma" = {{low = 0.0, high = 1.0}}
"""
Quality = Callable[[Mapping[str, Any]], float]


def written_plan(folder: Path, **sweep: Any) -> Plan:
    """The plan of a file in `folder`, which is the working directory; texts are written as TOML."""
    path = Path("mine.toml")
    lines = [f"{key} = {value}" for key, value in ({"trials": 4, "pruner": '"none"'} | sweep).items()]
    (folder / path).write_text(FILE.format(sweep="\n".join(lines)))
    plan = read_plan(path)
    plan.folder.mkdir(parents=True, exist_ok=True)
    return plan


class StubRun:
    """As TrialRun: an evaluation every tenth of its time, whose value rises in proportion to it."""

    def __init__(self, world: StubRuns, suggestion: Suggestion, index: int, place: int) -> None:
        self.name, self.seed = f"trial-{suggestion.number}-{index}", index + 1
        self.suggestion, self.index, self.place = suggestion, index, place
        self.began, self._world = world.now, world
        self.stopped_after: float | None = None
        self.killed = self.removed = False

    @property
    def seconds(self) -> float:
        passed = self._world.now - self.began if self.stopped_after is None else self.stopped_after
        return passed if self.suggestion.number in self._world.endless else min(passed, SECONDS)

    def look(self) -> View:
        fault = self._world.faults.get(self.suggestion.number, "killed" if self.killed else "")
        apart = SECONDS / EVALUATIONS
        quality = self._world.quality(self.suggestion.values)
        times = [apart * (number + 1) for number in range(int(self.seconds / apart + 1e-9))]
        found = [Evaluation(when, int(when * STEPS_PER_SECOND), quality * when / SECONDS) for when in times]
        over = self.seconds >= SECONDS and self.suggestion.number not in self._world.endless
        ended = self.killed or bool(fault) or over or (self.stopped_after is not None and not self._world.stubborn)
        return View([] if self._world.blind else found, self.seconds / SECONDS, self.seconds, ended, fault)

    def stop(self) -> None:
        self.stopped_after = self._world.now - self.began

    def kill(self) -> None:
        self.killed = True

    def remove(self) -> None:
        assert self.look().ended
        self.removed = True


class StubRuns:
    """Starts them, and has the clock."""

    def __init__(self, quality: Quality = lambda values: float(values["algorithm.gamma"])) -> None:
        self.quality, self.now = quality, 1_000.0
        self.started: list[StubRun] = []
        self.faults: dict[int, str] = {}  # by the trial's number
        self.endless: set[int] = set()
        self.on_pause: Callable[[], object] = lambda: None
        self.blind = self.stubborn = False  # no evaluations; runs that do not stop when they are asked to

    def start(self, suggestion: Suggestion, index: int, place: int) -> StubRun:
        self.started.append(StubRun(self, suggestion, index, place))
        return self.started[-1]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.on_pause()

    @property
    def alive(self) -> list[StubRun]:
        return [run for run in self.started if not run.look().ended]


class StubSweep:
    """A study, a sweeper and stub runs in the working directory."""

    def __init__(self, plan: Plan, jobs: int = 1, runs: StubRuns | None = None) -> None:
        self.plan, self.runs = plan, runs or StubRuns()
        self.lines: list[str] = []
        self.study = Study(plan)
        self.sweeper = Sweeper(plan, self.study, self.runs.start, self.lines.append, lambda: self.runs.now)
        self.runner = JobRunner(self.sweeper, self.lines.append, jobs, lambda: self.runs.now, self.runs.pass_time)

    def turns(self, count: int = 10_000, seconds: float = 5.0) -> None:
        """`count` turns, `seconds` apart, or until the end."""
        for _ in range(count):
            if self.runner.finished:
                return
            self.runner.turn()
            assert len({run.place for run in self.runs.alive}) == len(self.runs.alive), "two trials in one place"
            self.runs.now += seconds
        assert count < 10_000, "the sweep does not end"

    def with_trials(self, trials: int) -> Plan:
        """The plan with another number of trials."""
        return replace(self.plan, config=structs.replace(self.plan.config, trials=trials))
