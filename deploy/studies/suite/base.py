"""How a kind of contestant trains: the protocol, and the table of kinds.

A training saves its policies as it goes on, each with the seconds since its process was started: the time includes start-up. The
policies are evaluated when the training is over, so that evaluations do not slow it down.
"""

from __future__ import annotations

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from actors.envs.preflight.parent import PreflightResult
from actors.evaluation.lines import add_line
from actors.trust import Found
from deploy.errors import ConfigError
from deploy.studies.suite.file import Contestant, SuiteRun, Task
from transport.names import find, nearest

# Their modules are imported when a file names them.
PEERS = {  # the scripts of benchmarks/peers/
    "cleanrl": "cleanrl_peer",
    "jitted-ppo": "jitted_ppo_peer",
    "rlox": "rlox_peer",
    "sample-factory": "sample_factory_peer",
    "sbx": "sbx_peer",
    "stable-baselines3": "stable_baselines3_peer",
}
KINDS = {"headrace": "deploy.studies.suite.headrace:Headrace"} | dict.fromkeys(PEERS, "deploy.studies.suite.peer:Peer")


class SuiteFolder:
    """The files of a run that has no result yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begun = path / "begun.json"  # the settings that were asked for, and the process
        self.trained = path / "trained.json"  # training is over
        self.snapshots = path / "snapshots.jsonl"
        self.evaluations = path / "evaluations.jsonl"
        self.request = path / "evaluate.json"
        self.log = path / "log"


class TrainingResult(NamedTuple):
    """The outcome of a training that has ended. `configuration`: all settings, resolved; `versions`: of its libraries."""

    steps: int
    configuration: dict[str, Any]
    versions: dict[str, str]


class TaskFacts(NamedTuple):
    """A task, and what the pre-flight found out about its environment."""

    task: Task
    facts: PreflightResult


class Training(ABC):
    """A training, from the start of its process."""

    process: subprocess.Popen[bytes]

    def turn(self) -> None:  # noqa: B027
        """Called several times a second: saves a snapshot if one is due and the process does not do so itself."""

    @abstractmethod
    def finish(self) -> TrainingResult:
        """Called when the process has ended. Raises OSError, ValueError where it left no policy."""


class Kind(ABC):
    """A kind of contestant."""

    def __init__(self, contestant: Contestant) -> None:
        self.contestant = contestant

    @abstractmethod
    def code(self, task: Task) -> Found:
        """The settings that name code or a program, with what they name. Imports nothing."""

    @abstractmethod
    def check(self, tasks: Sequence[TaskFacts]) -> None:
        """Raises ConfigError for settings that cannot be run, before anything runs."""

    @abstractmethod
    def begin(self, run: SuiteRun, folder: SuiteFolder, trusted: bool) -> Training:
        """Starts a process. It ends by itself at the limits of the task. Raises ConfigError."""

    @abstractmethod
    def policies(self, run: SuiteRun, folder: SuiteFolder, trusted: bool) -> dict[str, Any]:
        """Fields of the request to actors.evaluation.snapshots: whose policies they are. What they were trained with is what the
        suite says: another process, or account, may have left the files of the training. Raises ConfigError."""

    def remove(self, run: SuiteRun) -> None:  # noqa: B027
        """Deletes what a run has left besides its folder."""


def find_kind(contestant: Contestant) -> Kind:
    """Raises ConfigError."""
    if contestant.kind not in KINDS:
        raise ConfigError(
            f"contestants.{contestant.name}.kind: there is no kind {contestant.kind!r}; {nearest(contestant.kind, KINDS)}"
        )
    kind: type[Kind] = find(contestant.kind, KINDS, "kind")
    return kind(contestant)


class SnapshotFile:
    """Adds policies to a run's snapshots.jsonl. Times are seconds since `began`, a value of time.monotonic()."""

    def __init__(self, folder: SuiteFolder, began: float) -> None:
        self._folder, self._began = folder, began
        self._number, self._last = 0, 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def add(self, data: bytes, suffix: str, steps: int, seconds: float) -> None:
        """`seconds`: when the policy was made, not before the one that was added last."""
        self._number += 1
        self._last = max(seconds, self._last)
        name = f"policy-{self._number:05d}{suffix}"
        (self._folder.path / name).write_bytes(data)
        add_line(self._folder.snapshots, {"file": name, "seconds": round(self._last, 3), "steps": steps})
