"""A kind of contestant without learning: a child process "trains" by writing policies, another one acts by pushing to one side.

`python -m tests.deploy.studies.suite.stub train|act FOLDER …` are these processes; with `suite FILE RESULTS` it is a suite
of stubs in a process that a test can kill.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from actors.evaluation.lines import add_line
from actors.evaluation.pipe import Act, serve
from deploy.config.run import ConfigError
from deploy.studies.suite.base import Folder, Trained, Tried
from deploy.studies.suite.file import Contestant, Run, read
from deploy.studies.suite.runner import Runner
from tests.harness.waiting import ROOT

POLICIES = 3


class Stub:
    """Settings: `hold`, a file that training waits for; `exit`, the status that its process ends with."""

    def __init__(self, contestant: Contestant) -> None:
        self.contestant = contestant
        self.begun: list[str] = []  # names of runs
        self.removed: list[str] = []

    def check(self, tasks: Sequence[Tried], trusted: bool) -> None:
        if "bad" in self.contestant.settings:
            raise ConfigError("contestants: bad is no setting")

    def begin(self, run: Run, folder: Folder, trusted: bool) -> StubTraining:
        self.begun.append(run.name)
        settings = run.contestant.settings_for(run.task)
        words = ("train", str(folder.path.resolve()), str(settings.get("hold", "")), str(settings.get("exit", 0)))
        with folder.log.open("ab") as log:
            return StubTraining(subprocess.Popen([*command(), *words], stdout=log, stderr=log, cwd=ROOT))

    def policies(self, run: Run, folder: Folder) -> dict[str, Any]:
        return {"env": run.task.env, "act": [*command(), "act", str(folder.path)]}

    def remove(self, run: Run) -> None:
        self.removed.append(run.name)


class StubTraining:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def turn(self) -> None: ...

    def finish(self) -> Trained:
        return Trained(steps=300, configuration={"stub": True}, versions={"stub": "1"})


def command() -> list[str]:
    return [sys.executable, "-m", "tests.deploy.studies.suite.stub"]


def train(folder: Path, hold: str, status: str) -> None:
    for number in range(1, POLICIES + 1):
        (folder / f"policy-{number}").write_text("1")
        add_line(folder / "snapshots.jsonl", {"file": f"policy-{number}", "seconds": float(number), "steps": 100 * number})
    while hold and not Path(hold).exists():
        time.sleep(0.02)
    sys.exit(int(status))


def load(path: str) -> Act:
    action = int(Path(path).read_text())
    return lambda observation: np.full(len(observation), action)


def suite_of(file: Path, results: Path) -> Runner:
    suite = read(file)
    kinds = {contestant.name: Stub(contestant) for contestant in suite.contestants}
    return Runner(suite, results, lambda line: print(line, file=sys.stderr, flush=True), kinds=kinds)


def main(word: str, *words: str) -> None:
    if word == "train":
        train(Path(words[0]), words[1], words[2])
    elif word == "act":
        serve(load, sys.stdin.buffer, sys.stdout.buffer)
    else:
        suite_of(Path(words[0]), Path(words[1])).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
