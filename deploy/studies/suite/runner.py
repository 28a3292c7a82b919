"""Runs a suite, one run after the other, and goes on where an earlier process of it ended.

A run has three stages: it trains; its policies are evaluated; its result is written. A run that has a result is skipped. A
training that did not end starts again, because its time counts from the start of its process. Evaluations go on after the last
one that was written.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from actors.evaluation.lines import read_lines
from actors.trust import FLAG
from deploy import provenance
from deploy.children import python_command, start_in_background
from deploy.config import trust
from deploy.config.files import Tree
from deploy.config.layers import layers, resolve
from deploy.errors import ConfigError
from deploy.launch.preflight import try_environment
from deploy.studies.lock import locked
from deploy.studies.suite import evidence
from deploy.studies.suite.base import PATIENCE_SECONDS, Folder, Kind, TaskFacts, Training, find_kind
from deploy.studies.suite.file import Run, Suite, order
from transport.files.documents import read_bytes
from transport.files.writing import write_atomically
from transport.text import duration, plain

TURN_SECONDS = 0.1
CLOCK_SECONDS = 0.1  # that two readings of a process's start may differ
Say = Callable[[str], None]


class RunFailed(Exception):
    """A run that ended without a result: one line."""


class Runner:
    """The runs of a suite and where their files are: RESULTS/NAME.json, and RESULTS/unfinished/NAME/ until then."""

    def __init__(
        self, suite: Suite, results: Path, say: Say, trusted: bool = False, kinds: Mapping[str, Kind] | None = None
    ) -> None:
        """`say` prints a line. `kinds`, by the contestants' names, are what the file says unless a test gives others. Raises
        ConfigError."""
        self._results, self._say, self._trusted = results, say, trusted
        self._suite, self.runs = suite, list(order(suite))
        self._kinds = kinds or {contestant.name: find_kind(contestant) for contestant in suite.contestants}
        self.failed: list[str] = []

    def result(self, run: Run) -> Path:
        return self._results / f"{run.name}.json"

    def finished(self) -> list[tuple[Run, dict[str, Any]]]:
        """The runs that have a result, and the results. Raises ConfigError for one made with other settings than the file's."""
        return [(run, self._read(run)) for run in self.runs if self.result(run).exists()]

    def check(self) -> None:
        """Tries what is left to run, before any of it runs. Raises ConfigError, EnvError."""
        self.finished()
        left = [run for run in self.runs if not self.result(run).exists()]
        if not self._trusted:
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

    def run(self) -> None:
        """All runs that are left; the names of those that failed are in `failed`. Raises ConfigError, also where another process
        runs this suite; KeyboardInterrupt when the run that goes on has ended in order."""
        self._results.mkdir(parents=True, exist_ok=True)
        with locked(self._results, self._is_locked):
            done = sum(self.result(run).exists() for run in self.runs)
            if done:
                self._say(f"{done} of {len(self.runs)} runs are finished, and are skipped")
            for number, run in enumerate(self.runs, 1):
                if self.result(run).exists():
                    self._clear(run)  # a suite may have been killed before it did so
                    continue
                title = f"[{number}/{len(self.runs)}] {run.task.name} · {run.contestant.name} · seed {run.seed}"
                try:
                    self._one(run, title)
                except RunFailed as error:
                    self.failed.append(run.name)
                    self._say(f"{title}: failed: {error}")

    def _one(self, run: Run, title: str) -> None:
        """Trains unless that is over, evaluates, writes the result. Raises RunFailed."""
        folder, kind = self._folder(run), self._kinds[run.contestant.name]
        if not self._trained(run, folder, title):
            self._say(f"{title}: begins, {duration(run.task.seconds)} at most; {self._left()}")
            self._clear(run)
            folder.path.mkdir(parents=True)
            self._train(run, folder, kind)
        began = time.monotonic()
        self._evaluate(run, folder, kind)
        evaluations = list(read_lines(folder.evaluations))
        if not evaluations:
            raise RunFailed(f"it has saved no policy: see {folder.log}")
        trained = evidence.read_object(folder.trained)
        evidence.write(self.result(run), evidence.document(run, trained, evaluations))
        last = evidence.metric_of({"curve": [evidence.point(evaluations[-1])]}, run.task.metric)[0]
        self._say(
            f"{title}: ended after {duration(trained['training']['seconds'])} and {trained['training']['steps']:,} steps, last "
            f"{run.task.metric} {last:,.4g}; {len(evaluations)} evaluations took {duration(time.monotonic() - began)}; "
            f"{self._left()}"
        )
        self._clear(run)

    def _folder(self, run: Run) -> Folder:
        return Folder(self._results / "unfinished" / run.name)

    def _clear(self, run: Run) -> None:
        """Deletes what a run has besides its result. Without a log this suite has started no process for it, and what there is of
        its name belongs to someone else."""
        folder = self._folder(run)
        if folder.log.exists():
            self._kinds[run.contestant.name].remove(run)
        shutil.rmtree(folder.path, ignore_errors=True)

    def _trained(self, run: Run, folder: Folder, title: str) -> bool:
        """Whether an earlier process has finished the training of a run; ends what is left of one that it has not."""
        if not folder.begun.exists():
            return False
        begun = evidence.read_object(folder.begun)
        _stop_orphan(begun)
        if difference := _difference(begun["asked"], run.asked()):
            self._say(f"{title}: was begun with other settings ({difference}), so it starts again")
            return False
        if not folder.trained.exists():
            self._say(f"{title}: its training did not end, so it starts again: time counts from the start of its process")
            return False
        self._say(f"{title}: its training is over, its evaluation goes on")
        return True

    def _train(self, run: Run, folder: Folder, kind: Kind) -> None:
        """Until the process ends or the time is over. Raises RunFailed."""
        speed = provenance.core_speed()
        try:
            training = kind.begin(run, folder, self._trusted)
        except ConfigError as error:
            raise RunFailed(str(error)) from error
        began, asked = time.monotonic(), time.time()
        process = training.process
        try:
            self._record(folder, run, process)
            ended = "by itself"
            while process.poll() is None:
                training.turn()
                if time.monotonic() - began >= run.task.seconds:
                    ended = "at the time limit"
                    break
                time.sleep(TURN_SECONDS)
            seconds = time.monotonic() - began
        finally:
            stop(process)
        if ended == "by itself" and process.returncode:
            raise RunFailed(f"its process ended with {process.returncode} ({_last_line(folder)}): see {folder.log}")
        self._write_trained(folder, training, asked, seconds, ended, [speed, provenance.core_speed()])

    def _write_trained(
        self, folder: Folder, training: Training, began: float, seconds: float, ended: str, speeds: list[float]
    ) -> None:
        try:
            trained = training.finish()
        except (OSError, ValueError, LookupError) as error:
            raise RunFailed(f"{error}: see {folder.log}") from error
        document = {
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
            "training": {"seconds": round(seconds, 3), "steps": trained.steps, "ended": ended},
            "machine": {**provenance.machine(), "core_speed": speeds},  # before and after the training
            "commit": provenance.commit(),
            "versions": trained.versions,
            "configuration": trained.configuration,
        }
        evidence.write(folder.trained, document)

    def _evaluate(self, run: Run, folder: Folder, kind: Kind) -> None:
        """Raises RunFailed."""
        try:
            policies = kind.policies(run, folder, self._trusted)
        except ConfigError as error:
            raise RunFailed(str(error)) from error
        request = {"folder": str(folder.path), "episodes": run.task.episodes, **policies}
        write_atomically(folder.request, json.dumps(request).encode())
        process = start_in_background(python_command("actors.evaluation.snapshots", str(folder.request)), folder.log)
        try:
            self._record(folder, run, process)
            status = process.wait()
        finally:
            stop(process)
        if status:
            raise RunFailed(f"its evaluation ended with {status} ({_last_line(folder)}): see {folder.log}")

    def _record(self, folder: Folder, run: Run, process: subprocess.Popen[bytes]) -> None:
        """Records the process, so that the next process of the suite can stop it if this one is killed."""
        created = 0.0
        with suppress(psutil.Error):
            created = psutil.Process(process.pid).create_time()
        evidence.write(folder.begun, {"pid": process.pid, "created": created, "asked": run.asked()})

    def _read(self, run: Run) -> dict[str, Any]:
        path = self.result(run)
        found = evidence.read(path)
        if difference := _difference(found["asked"], run.asked()):
            raise ConfigError(
                f"{path} was made with other settings ({difference}): remove it to repeat the run, or give another --results"
            )
        return found

    def _left(self) -> str:
        """How long all that is left trains at most."""
        left = [other for other in self.runs if not self.result(other).exists()]
        seconds = sum(other.task.seconds for other in left)
        return f"at most {duration(seconds)} of training left" if left else "nothing is left"

    def _is_locked(self, pid: str) -> ConfigError:
        return ConfigError(f"another process (pid {pid}) is running this suite into {self._results}: wait for it, or stop it")


def stop(process: subprocess.Popen[bytes] | psutil.Process, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Asks a process to end, and kills it if it does not, or at once on a second Ctrl-C."""
    process.terminate()
    try:
        process.wait(patience_seconds)
    except (subprocess.TimeoutExpired, psutil.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def _stop_orphan(begun: Tree) -> None:
    """Stops the process that a killed suite has left, if it still runs."""
    with suppress(psutil.Error):
        process = psutil.Process(begun["pid"])
        if abs(process.create_time() - begun["created"]) < CLOCK_SECONDS:
            stop(process)


def _difference(before: Tree, now: Tree, prefix: str = "") -> str:
    """The first key in which two trees differ; empty if none does."""
    now = json.loads(evidence.strict_json(now))
    for key in sorted(before.keys() | now.keys()):
        was, wanted = before.get(key), now.get(key)
        if isinstance(was, dict) and isinstance(wanted, dict):
            if found := _difference(was, wanted, f"{prefix}{key}."):
                return found
        elif was != wanted:
            return f"{prefix}{key} was {was!r}, is {wanted!r}"
    return ""


def _last_line(folder: Folder) -> str:
    """Of the log."""
    said = read_bytes(folder.log).decode(errors="replace").strip().splitlines()
    return plain(said[-1]) if said else "it said nothing"


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
