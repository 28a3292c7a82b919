"""The runs of a suite, one after the other: its queue of jobs, and each run as a job.

A run has three stages: it trains; its policies are evaluated; its result is written. A run that has a result is skipped. A
training that did not end starts again, because its time counts from the start of its process. Evaluations go on after the last
one that was written.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
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
from deploy.studies.jobs import STOP_SECONDS, JobRunner, ProcessJob, Queue, Say, locked
from deploy.studies.suite import evidence
from deploy.studies.suite.base import Kind, SuiteFolder, TaskFacts, Training, find_kind
from deploy.studies.suite.file import Suite, SuiteRun, order
from transport.files.documents import read_bytes
from transport.files.writing import write_atomically
from transport.text import duration, plain

CLOCK_SECONDS = 0.1  # that two readings of a process's start may differ


class RunFailed(Exception):
    """A run that ended without a result: one line."""


class RunJob(ProcessJob):
    """One run: its training, then its evaluation, then its result. Its files are in RESULTS/unfinished/NAME/ until then."""

    def __init__(self, runner: Runner, run: SuiteRun, kind: Kind, number: int) -> None:
        super().__init__()
        self._runner, self._run, self._kind = runner, run, kind
        self._folder = SuiteFolder(runner.result(run).parent / "unfinished" / run.name)
        self._title = f"[{number}/{len(runner.runs)}] {run.task.name} · {run.contestant.name} · seed {run.seed}"

    def clear(self) -> None:
        """Deletes what a run has besides its result. Without a log this suite has started no process for it, and what there is of
        its name belongs to someone else."""
        if self._folder.log.exists():
            self._kind.remove(self._run)
        shutil.rmtree(self._folder.path, ignore_errors=True)

    def work(self) -> Iterator[None]:
        try:
            yield from self._work()
        except RunFailed as error:
            self._runner.failed.append(self._run.name)
            self._say(f"failed: {error}")

    def _work(self) -> Iterator[None]:
        """Trains unless that is over, evaluates, writes the result. Raises RunFailed."""
        run, folder = self._run, self._folder
        if not self._trained():
            self._say(f"begins, {duration(run.task.seconds)} at most; {self._runner.left()}")
            self.clear()
            folder.path.mkdir(parents=True)
            yield from self._train()
        began = time.monotonic()
        yield from self._evaluate()
        evaluations = list(read_lines(folder.evaluations))
        if not evaluations:
            raise RunFailed(f"it has saved no policy: see {folder.log}")
        trained = evidence.read_object(folder.trained)
        evidence.write(self._runner.result(run), evidence.document(run, trained, evaluations))
        last = evidence.metric_of({"curve": [evidence.point(evaluations[-1])]}, run.task.metric)[0]
        self._say(
            f"ended after {duration(trained['training']['seconds'])} and {trained['training']['steps']:,} steps, last "
            f"{run.task.metric} {last:,.4g}; {len(evaluations)} evaluations took {duration(time.monotonic() - began)}; "
            f"{self._runner.left()}"
        )
        self.clear()

    def _trained(self) -> bool:
        """Returns whether an earlier process has finished the training; ends what is left of one that it has not."""
        if not self._folder.begun.exists():
            return False
        begun = evidence.read_object(self._folder.begun)
        _stop_orphan(begun)
        if other := evidence.difference(begun["asked"], self._run.asked()):
            self._say(f"was begun with other settings ({other}), so it starts again")
            return False
        if not self._folder.trained.exists():
            self._say("its training did not end, so it starts again: time counts from the start of its process")
            return False
        self._say("its training is over, its evaluation goes on")
        return True

    def _train(self) -> Iterator[None]:
        """Until the process ends or the time is over. Raises RunFailed."""
        speed = provenance.core_speed()
        try:
            training = self._kind.begin(self._run, self._folder, self._runner.trusted)
        except ConfigError as error:
            raise RunFailed(str(error)) from error
        began, asked = time.monotonic(), time.time()
        self.process = training.process
        self._record()
        ended = "by itself"
        while self.running:
            training.turn()
            if time.monotonic() - began >= self._run.task.seconds:
                ended = "at the time limit"
                break
            yield
        seconds = time.monotonic() - began
        yield from self.until_stopped()
        if ended == "by itself" and (status := training.process.returncode):
            raise RunFailed(f"its process ended with {status} ({self._last_line()}): see {self._folder.log}")
        self._write_trained(training, asked, seconds, ended, [speed, provenance.core_speed()])

    def _write_trained(self, training: Training, began: float, seconds: float, ended: str, speeds: list[float]) -> None:
        try:
            trained = training.finish()
        except (OSError, ValueError, LookupError) as error:
            raise RunFailed(f"{error}: see {self._folder.log}") from error
        document = {
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
            "training": {"seconds": round(seconds, 3), "steps": trained.steps, "ended": ended},
            "machine": {**provenance.machine(), "core_speed": speeds},  # before and after the training
            "commit": provenance.commit(),
            "versions": trained.versions,
            "configuration": trained.configuration,
        }
        evidence.write(self._folder.trained, document)

    def _evaluate(self) -> Iterator[None]:
        """Raises RunFailed."""
        folder = self._folder
        try:
            policies = self._kind.policies(self._run, folder, self._runner.trusted)
        except ConfigError as error:
            raise RunFailed(str(error)) from error
        request = {"folder": str(folder.path), "episodes": self._run.task.episodes, **policies}
        write_atomically(folder.request, json.dumps(request).encode())
        process = start_in_background(python_command("actors.evaluation.snapshots", str(folder.request)), folder.log)
        self.process = process
        self._record()
        while self.running:
            yield
        if process.returncode:
            raise RunFailed(f"its evaluation ended with {process.returncode} ({self._last_line()}): see {folder.log}")

    def _record(self) -> None:
        """Records the process, so that the next process of the suite can stop it if this one is killed."""
        assert self.process is not None
        created = 0.0
        with suppress(psutil.Error):
            created = psutil.Process(self.process.pid).create_time()
        evidence.write(self._folder.begun, {"pid": self.process.pid, "created": created, "asked": self._run.asked()})

    def _last_line(self) -> str:
        """The last line of the log."""
        said = read_bytes(self._folder.log).decode(errors="replace").strip().splitlines()
        return plain(said[-1]) if said else "it said nothing"

    def _say(self, text: str) -> None:
        self._runner.say(f"{self._title}: {text}")


class Runner(Queue):
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

    def result(self, run: SuiteRun) -> Path:
        return self._results / f"{run.name}.json"

    def finished(self) -> list[tuple[SuiteRun, dict[str, Any]]]:
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

    def _check_code(self, run: SuiteRun) -> None:
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

    def left(self) -> str:
        """How long all that is left trains at most."""
        left = [other for other in self.runs if not self.result(other).exists()]
        seconds = sum(other.task.seconds for other in left)
        return f"at most {duration(seconds)} of training left" if left else "nothing is left"

    def _read(self, run: SuiteRun) -> dict[str, Any]:
        path = self.result(run)
        found = evidence.read(path)
        if other := evidence.difference(found["asked"], run.asked()):
            raise ConfigError(
                f"{path} was made with other settings ({other}): remove it to repeat the run, or give another --results"
            )
        return found

    def _is_locked(self, pid: str) -> ConfigError:
        return ConfigError(f"another process (pid {pid}) is running this suite into {self._results}: wait for it, or stop it")


def _stop_orphan(begun: Tree) -> None:
    """Stops the process that a killed suite has left, if it still runs."""
    with suppress(psutil.Error):
        process = psutil.Process(begun["pid"])
        if abs(process.create_time() - begun["created"]) >= CLOCK_SECONDS:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except (psutil.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
