"""A kind of contestant without learning. Its processes are those of stub_process.py.

`python -m tests.deploy.studies.suite.stub FILE RESULTS` is a suite of stubs in a process that a test can kill.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from actors.evaluation.lines import add_line, read_lines
from actors.trust import Found
from deploy.errors import ConfigError
from deploy.studies.suite.base import Kind, SuiteFolder, TaskFacts, Training, TrainingResult
from deploy.studies.suite.file import Contestant, SuiteRun, Task, read
from deploy.studies.suite.runner import RunJob, Runner
from tests.harness.waiting import ROOT

EPISODES = {"return": [9.0, 10.0, 11.0], "length": [9, 10, 11]}


class Stub(Kind):
    """Settings: `hold`, a file that training waits for, {seed} is the run's; `exit`, the status that its process ends with."""

    def __init__(self, contestant: Contestant) -> None:
        super().__init__(contestant)
        self.begun: list[str] = []  # names of runs
        self.removed: list[str] = []

    def code(self, task: Task) -> Found:
        return {}

    def check(self, tasks: Sequence[TaskFacts]) -> None:
        if "bad" in self.contestant.settings:
            raise ConfigError("contestants: bad is no setting")

    def begin(self, run: SuiteRun, folder: SuiteFolder, trusted: bool) -> StubTraining:
        self.begun.append(run.name)
        settings = run.contestant.settings_for(run.task)
        hold = str(settings.get("hold", "")).format(seed=run.seed)
        words = ("train", str(folder.path.resolve()), hold, str(settings.get("exit", 0)))
        with folder.log.open("ab") as log:
            return StubTraining(subprocess.Popen([*command(), *words], stdout=log, stderr=log, cwd=ROOT))

    def policies(self, run: SuiteRun, folder: SuiteFolder, trusted: bool) -> dict[str, Any]:
        return {"env": run.task.env, "act": [*command(), "act", str(folder.path)]}

    def remove(self, run: SuiteRun) -> None:
        self.removed.append(run.name)


class StubTraining(Training):
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def finish(self) -> TrainingResult:
        return TrainingResult(steps=300, configuration={"stub": True}, versions={"stub": "1"})


def command() -> list[str]:
    return [sys.executable, "-m", "tests.deploy.studies.suite.stub_process"]


class StubJob(RunJob):
    """Every policy has the same episodes, which nobody plays."""

    def _evaluate(self) -> Iterator[None]:
        for snapshot in read_lines(self._folder.snapshots):
            add_line(self._folder.evaluations, snapshot | {"episodes": EPISODES})
        yield


class StubRunner(Runner):
    job = StubJob


def suite_of(file: Path, results: Path, runner: type[Runner] = StubRunner) -> Runner:
    suite = read(file)
    kinds = {contestant.name: Stub(contestant) for contestant in suite.contestants}
    return runner(suite, results, lambda line: print(line, file=sys.stderr, flush=True), kinds=kinds)


if __name__ == "__main__":
    file, results = map(Path, sys.argv[1:])
    suite_of(file, results).run()
