"""Headrace as a contestant: `headrace up`, an ordinary run in runs/.

While the run goes on, its published weights are fetched as an actor fetches them, at the interval that the task asks for. So a
snapshot holds what actors act with at that moment, and the run saves no additional checkpoints. Its own evaluator is off unless
the settings turn it on: policies are evaluated when training is over.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import tomli_w

from actors.trust import FLAG, Found
from deploy import provenance, runs, settings
from deploy.children import python_command, start_in_background
from deploy.config import trust
from deploy.config.files import Layer, Tree, merge, read_toml
from deploy.config.layers import layers, load_run_config, resolve
from deploy.errors import ConfigError
from deploy.launch import defaults
from deploy.studies.suite import evidence
from deploy.studies.suite.base import Kind, SnapshotFile, SuiteFolder, TaskFacts, Training, TrainingResult
from deploy.studies.suite.file import SuiteRun, Task
from learner.weights.checkpoint import pack, policy_weights, read
from transport.messages.weights import FetchWeights, Weights
from transport.sockets.client import Client

SUFFIX = ".weights"


class Headrace(Kind):
    """`settings` are keys of a run's configuration."""

    def code(self, task: Task) -> Found:
        return trust.code_in(self._given(task))

    def check(self, tasks: Sequence[TaskFacts]) -> None:
        for task, facts in tasks:
            where = f"contestants.{self.contestant.name}, task {task.name}"
            given = self._given(task)
            try:
                stack = layers(given)
                resolve(stack)
                if given["env"] == task.env:  # otherwise `facts` are of another environment, and the launch checks the rest
                    defaults.resolve_for([*stack, Layer("what env names", {"env": facts.options})], facts, False)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from error

    def begin(self, run: SuiteRun, folder: SuiteFolder, trusted: bool) -> HeadraceTraining:
        if runs.run_dir(run.name).path.exists():
            raise ConfigError(
                f"there is a run {run.name} already, which this suite has not started: rename its folder, or delete it by "
                f"`headrace rm {run.name}`"
            )
        file = folder.path / "settings.toml"
        file.write_text(tomli_w.dumps(merge(self._given(run.task), {"seed": run.seed})), "utf-8")
        # The suite stops the run; the run's own limit is for a suite that has been killed.
        words = ["--run", run.name, "--config", str(file), "--stop-after", f"{run.task.seconds:g}s", *([FLAG] if trusted else [])]
        began = time.monotonic()
        process = start_in_background(python_command("deploy.cli.main", "up", *words), folder.log)
        return HeadraceTraining(process, run, SnapshotFile(folder, began))

    def policies(self, run: SuiteRun, folder: SuiteFolder, trusted: bool) -> dict[str, Any]:
        run_dir = runs.run_dir(run.name)
        settings.write(run_dir, load_run_config(run_dir, trusted))
        return {"run": str(run_dir.path)}

    def remove(self, run: SuiteRun) -> None:
        folder = runs.run_dir(run.name)
        if folder.path.exists():
            runs.remove(folder)

    def _given(self, task: Task) -> Tree:
        limits = {"total_steps": task.total_steps} if task.total_steps else {}
        own: Tree = {"env": task.env, "evaluator": {"enabled": False}} | limits
        return merge(own, self.contestant.settings_for(task))


class HeadraceTraining(Training):
    """A run that is up."""

    def __init__(self, process: subprocess.Popen[bytes], run: SuiteRun, snapshots: SnapshotFile) -> None:
        self.process = process
        self._run_dir, self._every = runs.run_dir(run.name), run.task.snapshot_seconds
        self._snapshots, self._due = snapshots, 0.0
        self._client: Client | None = None

    def turn(self) -> None:
        """The learner answers only if there are newer weights than it has sent before; an answer that is late counts when it
        arrives."""
        if self._client is None:
            address = self._run_dir.endpoint("payload")
            if address is None:
                return
            self._client = Client(address, endpoint="payload")
        arrival = self._client.receive()
        if arrival is not None and isinstance(arrival[0], Weights):
            self._snapshots.add(b"".join(arrival[1]), SUFFIX, runs.read_steps(self._run_dir), self._snapshots.seconds)
        if self._snapshots.seconds >= self._due:
            self._client.send(FetchWeights())
            self._due = self._snapshots.seconds + self._every

    def finish(self) -> TrainingResult:
        """The last policy is the one that the learner saved when it stopped."""
        if self._client is not None:
            self._client.close()
        run_dir, steps = self._run_dir, runs.read_steps(self._run_dir)
        if run_dir.latest.exists():
            weights, _ = read(run_dir.latest)
            seconds = run_dir.latest.stat().st_mtime - (time.time() - self._snapshots.seconds)
            self._snapshots.add(pack(policy_weights(weights)), SUFFIX, steps, seconds)
        configuration = read_toml(run_dir.config, own=True)
        with suppress(OSError, ValueError):
            configuration["device"] = evidence.read_object(run_dir.device)
        return TrainingResult(steps, configuration, provenance.versions())
