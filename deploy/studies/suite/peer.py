"""Another library as a contestant: a script of benchmarks/peers/ in a process of its own, by an interpreter that has the
library. It needs the source tree.

    PYTHON -m benchmarks.peers.SCRIPT check REQUEST.json    prints {"complaints": {TASK: TEXT}, "versions": {…}}
                                               train REQUEST.json    writes snapshots.jsonl, the files that it names, end.json
                                               act   REQUEST.json    acts (actors/evaluation/pipe.py)
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actors.trust import Found
from deploy.children import (
    ROOT,
    THREAD_VARIABLES,
    child_environment,
    last_error,
    python_command,
    run_child,
    start_in_background,
)
from deploy.config.files import leaves
from deploy.errors import ConfigError
from deploy.studies.suite import evidence
from deploy.studies.suite.base import PEERS, Kind, SuiteFolder, TaskFacts, Training, TrainingResult
from deploy.studies.suite.file import Contestant, SuiteRun, Task

CHECK_SECONDS = 120.0
REQUEST = "peer.json"


class Peer(Kind):
    """`settings` are those of the peer's script."""

    def __init__(self, contestant: Contestant) -> None:
        super().__init__(contestant)
        self._python = os.path.expanduser(contestant.python or contestant.peer_python)

    def code(self, task: Task) -> Found:
        """Any text with a colon: whatever a library makes of it, Gymnasium imports the module before the colon."""
        values = leaves(self.contestant.settings_for(task))
        found = {f"settings.{key}": [text] for key, value in values if ":" in (text := str(value))}
        return found | ({"python": [self.contestant.python]} if self.contestant.python else {})

    def check(self, tasks: Sequence[TaskFacts]) -> None:
        where = f"contestants.{self.contestant.name}"
        if not (ROOT / "benchmarks").is_dir():
            raise ConfigError(f"{where}: peers need the source tree, and this is an installed package: clone the repository")
        if self._python and not Path(self._python).is_file():
            raise ConfigError(f"{where}.python: there is no {self._python}")
        asked = {task.name: self._request(task) for task, _ in tasks}
        try:
            done = run_child(self._command("check", json.dumps(asked)), CHECK_SECONDS, self._environment())
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"{where}.python: {self._python} does not run as a Python interpreter ({error})") from error
        if done.returncode:
            how = "benchmarks/README.md says how to install it"
            raise ConfigError(f"{where}: {self.contestant.kind} does not run ({last_error(done)}); {how}")
        for name, complaint in json.loads(done.stdout.splitlines()[-1])["complaints"].items():
            raise ConfigError(f"{where}, task {name}: {complaint}")

    def begin(self, run: SuiteRun, folder: SuiteFolder, trusted: bool) -> PeerTraining:
        process = start_in_background(self._command("train", self._write_request(run, folder)), folder.log, self._environment())
        return PeerTraining(process, folder)

    def policies(self, run: SuiteRun, folder: SuiteFolder, trusted: bool) -> dict[str, Any]:
        return {"env": run.task.env, "act": self._command("act", self._write_request(run, folder))}

    def _write_request(self, run: SuiteRun, folder: SuiteFolder) -> str:
        place = folder.path.resolve()
        request = self._request(run.task) | {"seed": run.seed, "folder": str(place), "began": time.time()}
        (place / REQUEST).write_text(json.dumps(request))
        return str(place / REQUEST)

    def _request(self, task: Task) -> dict[str, Any]:
        limits = {"seconds": task.seconds, "total_steps": task.total_steps, "snapshot_seconds": task.snapshot_seconds}
        chosen = {"settings": self.contestant.settings_for(task), "threads": self.contestant.threads}
        return {"env": task.env, **limits, **chosen}

    def _command(self, *words: str) -> list[str]:
        return python_command(f"benchmarks.peers.{PEERS[self.contestant.kind]}", *words, python=self._python)

    def _environment(self) -> dict[str, str]:
        return child_environment(self._python, **dict.fromkeys(THREAD_VARIABLES, str(self.contestant.threads)))


class PeerTraining(Training):
    """The script saves its policies itself."""

    def __init__(self, process: subprocess.Popen[bytes], folder: SuiteFolder) -> None:
        self.process, self._folder = process, folder

    def finish(self) -> TrainingResult:
        end = evidence.read_object(self._folder.path / "end.json")
        return TrainingResult(end["steps"], end["configuration"], end["versions"])
