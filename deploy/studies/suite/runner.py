"""The queue of a suite: its runs, one after the other. A run that has a result is skipped."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actors.trust import FLAG
from deploy.config import trust
from deploy.config.layers import layers, resolve
from deploy.errors import ConfigError
from deploy.launch.preflight import try_environment
from deploy.studies.jobs import Job, JobRunner, Say, locked
from deploy.studies.suite import evidence
from deploy.studies.suite.base import Kind, TaskFacts, find_kind
from deploy.studies.suite.file import Run, Suite, order
from deploy.studies.suite.run_job import RunJob
from transport.text import duration


class Runner:
    """The runs of a suite and their results, RESULTS/NAME.json. It is the queue of its jobs."""

    job = RunJob

    def __init__(
        self, suite: Suite, results: Path, say: Say, trusted: bool = False, kinds: Mapping[str, Kind] | None = None
    ) -> None:
        """`say` prints a line. `kinds`, by the contestants' names, are what the file says unless a test gives others. Raises
        ConfigError."""
        self._results, self.say, self.trusted = results, say, trusted
        self._suite, self.runs = suite, list(order(suite))
        self._kinds = kinds or {contestant.name: find_kind(contestant) for contestant in suite.contestants}
        self.failed: list[str] = []
        self._tried = 0  # runs that `next` has looked at

    def result(self, run: Run) -> Path:
        return self._results / f"{run.name}.json"

    def finished(self) -> list[tuple[Run, dict[str, Any]]]:
        """The runs that have a result, and the results. Raises ConfigError for one made with other settings than the file's."""
        return [(run, self._read(run)) for run in self.runs if self.result(run).exists()]

    def check(self) -> None:
        """Tries what is left to run, before any of it runs. Raises ConfigError, EnvError."""
        self.finished()
        left = [run for run in self.runs if not self.result(run).exists()]
        if not self.trusted:
            for run in left:
                self._check_code(run)
        tasks = {run.task.name: run.task for run in left}
        tried: list[TaskFacts] = []
        for name, task in tasks.items():
            try:
                config = resolve(layers({"env": task.env}))
            except ConfigError as error:
                raise ConfigError(f"tasks.{name}: {error}") from error
            tried.append(TaskFacts(task, try_environment(config)))
        for contestant in self._suite.contestants:
            if theirs := [one for one in tried if any(run[1:3] == (one.task, contestant) for run in left)]:
                self._kinds[contestant.name].check(theirs)

    def _check_code(self, run: Run) -> None:
        """Raises ConfigError where the file names code or a program for a run."""
        _, task, contestant, _ = run
        named = {f"tasks.{task.name}.{key}": found for key, found in trust.code_in({"env": task.env}).items()}
        named |= {f"contestants.{contestant.name}.{key}": found for key, found in self._kinds[contestant.name].code(task).items()}
        trust.refuse(named, Path(f"{self._suite.name}.toml"), f"add {FLAG} if you trust the file")

    def run(self, signals: list[int] | None = None) -> bool:
        """All runs that are left; the names of those that failed are in `failed`. Something in `signals` interrupts it. Returns
        whether it was interrupted. Raises ConfigError where another process runs this suite."""
        self._results.mkdir(parents=True, exist_ok=True)
        with locked(self._results, self._is_locked):
            done = sum(self.result(run).exists() for run in self.runs)
            if done:
                self.say(f"{done} of {len(self.runs)} runs are finished, and are skipped")
            jobs = JobRunner(self, self.say)
            jobs.run([] if signals is None else signals)
        return jobs.interrupted

    def next(self, place: int) -> RunJob | None:
        """The first run that has no result and has not failed. See Queue."""
        for run in self.runs[self._tried :]:
            self._tried += 1
            job = self.job(self, run, self._kinds[run.contestant.name], self._tried)
            if not self.result(run).exists():
                return job
            job.clear()  # a suite may have been killed before it did so
        return None

    def reason_to_end(self) -> str:
        return ""

    def abandoned(self, jobs: list[Job]) -> None: ...

    def left(self) -> str:
        """How long all that is left trains at most."""
        left = [other for other in self.runs if not self.result(other).exists()]
        seconds = sum(other.task.seconds for other in left)
        return f"at most {duration(seconds)} of training left" if left else "nothing is left"

    def _read(self, run: Run) -> dict[str, Any]:
        path = self.result(run)
        found = evidence.read(path)
        if other := evidence.difference(found["asked"], run.asked()):
            raise ConfigError(
                f"{path} was made with other settings ({other}): remove it to repeat the run, or give another --results"
            )
        return found

    def _is_locked(self, pid: str) -> ConfigError:
        return ConfigError(f"another process (pid {pid}) is running this suite into {self._results}: wait for it, or stop it")


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
