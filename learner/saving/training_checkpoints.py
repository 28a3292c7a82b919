"""The learner's full checkpoints: saves them, resumes from them, rolls back to them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from learner.algorithms.base import read_algorithm
from learner.config import LearnerSettings
from learner.saving import resume
from learner.saving.older import read_any
from learner.updates.base import Backend, Update
from learner.weights import checkpoint
from learner.weights.checkpoint import OLDER_KEPT, CheckpointError, Checkpoints, Stateful, Weights
from transport.experience import ExperienceSpec, SpecError, read_spec, write_spec
from transport.metrics import Metrics
from transport.run_dir import RunDir
from transport.text import say

COUNTERS = ("updates", "items")  # continue after a restart
MOMENTS = 3  # a parameter, and two that Adam keeps of it


class ResumedAt(NamedTuple):
    """Where training was when a checkpoint was written."""

    file: str
    epoch: int
    version: int


class TrainingCheckpoints:
    """Saves and restores an update and its optimisers."""

    def __init__(
        self,
        settings: LearnerSettings,
        spec: ExperienceSpec,
        run_dir: RunDir,
        update: Update,
        runtime: Backend,
        metrics: Metrics,
    ) -> None:
        self._settings, self._spec, self._run_dir, self._metrics = settings, spec, run_dir, metrics
        self._algorithm = read_algorithm(settings.algorithm).name
        self._update, self._runtime, self._group = update, runtime, runtime.group
        self._files = Checkpoints(run_dir.checkpoints, settings.learner.keep_checkpoints, OLDER_KEPT)
        parameters = (value for module in update.modules.values() for value in module.state_dict().values())
        metrics.gauge("save_bytes", MOMENTS * sum(value.nbytes for value in parameters))  # for the supervisor's patience
        self.outcome = ""  # of the last save(), for people
        self.unsound = False  # the last checkpoint was not written because weights are not finite

    def resume(self) -> ResumedAt | None:
        """Restores the newest undamaged checkpoint. None in a new run, which may begin with --learner.weights. Raises
        CheckpointError."""
        found = self._files.newest(self._group.say)
        if found is None:
            if self._run_dir.latest.exists():
                raise CheckpointError(f"{self._run_dir.checkpoints} holds weights but no full checkpoint; start with --fresh")
            if self._settings.learner.weights:
                self._start_from(Path(self._settings.learner.weights))
            return None
        path, tensors, metadata = found
        if metadata.get("spec_digest") != self._spec.digest:
            raise CheckpointError(f"{path}: made for another experience spec; start with --fresh")
        try:
            counters = resume.restore(self._update, self._runtime, tensors, metadata)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}; start with --fresh") from error
        self._metrics.begin_at(counters)
        try:
            return ResumedAt(path.name, int(metadata["epoch"]), int(metadata["policy_version"]))
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"{path}: not a learner's checkpoint ({error}); start with --fresh") from error

    def go_back(self, passing_over: int) -> Path | None:
        """Restores the newest undamaged checkpoint but `passing_over`; random numbers continue. None if there is none."""
        found = self._files.newest(self._group.say, passing_over)
        if found is None:
            return None
        path, tensors, metadata = found
        with self._runtime.random_kept():
            resume.restore(self._update, self._runtime, tensors, metadata)
        return path

    def save(self, epoch: int, version: int) -> bool:
        """Writes a full checkpoint, then `latest`, which holds the policy alone. False where it could not (the disk is full) or
        must not (weights are not finite): that is logged and counted, and training continues.

        Only rank 0 writes: all processes have the same state, except for their random numbers.
        """
        if self._group.rank:
            return True
        metadata = self._metadata(epoch, version)
        counters = {name: self._metrics.value(name) for name in COUNTERS}
        try:
            path = self._files.write(epoch, *resume.gather(self._update, self._runtime, counters, metadata))
            checkpoint.write_listed(self._run_dir.latest, dict(self._update.modules["policy"].state_dict()), metadata)
        except OSError as error:
            self._metrics.count("failed_checkpoints")
            self.outcome = f"could not write a checkpoint ({error.strerror}); earlier checkpoints are kept"
            say(self.outcome)
        except CheckpointError as error:
            self.unsound = True
            self._metrics.count("failed_checkpoints")
            self.outcome = f"no checkpoint is written ({error}); earlier checkpoints are kept"
            say(self.outcome)
        else:
            self.outcome = f"{path.name}: epoch {epoch:,}, policy v{version}"
            return True
        return False

    def _metadata(self, epoch: int, version: int) -> dict[str, str]:
        progress = {"policy_version": str(version), "epoch": str(epoch), "spec_digest": self._spec.digest}
        about = {"env": self._settings.env_id, "algorithm": self._algorithm, "spec": write_spec(self._spec).decode()}
        return progress | about

    def _start_from(self, path: Path) -> None:
        """Loads the policy of another file. Raises CheckpointError for one of another environment or algorithm."""
        weights, metadata = read_any(path)
        if metadata.get("spec_digest") != self._spec.digest and not self._fits(metadata):
            raise CheckpointError(
                f"--learner.weights {path}: made for {metadata.get('env', 'something')}, or with another algorithm"
            )
        self.begin_with(checkpoint.policy_weights(weights))
        self._group.say(f"starts from policy v{metadata.get('policy_version')} of {path}")

    def begin_with(self, weights: Weights) -> None:
        """Loads the weights of a policy. Raises CheckpointError for those of another network."""
        policy = self._update.modules["policy"]
        # Before it is loaded: a target network begins as a copy of the policy, and is to be one now, too.
        copies = [module for module in self._update.modules.values() if module is not policy and _equal(module, policy)]
        for module in (policy, *copies):
            checkpoint.load_into(module, weights)

    def _fits(self, metadata: Mapping[str, str]) -> bool:
        """True for a policy of the same algorithm, and for the same observations and actions; how rows are cut into items does
        not matter."""
        try:
            spec, ours = read_spec(metadata["spec"].encode()), self._spec
        except (KeyError, SpecError):
            return False
        known = (metadata.get("algorithm"), spec.fields, spec.action, spec.stack)
        return known == (self._algorithm, ours.fields, ours.action, ours.stack)


def _equal(one: Stateful, other: Stateful) -> bool:
    """True if two modules have the same weights under the same names."""
    mine, others = ({name: checkpoint.as_array(value) for name, value in each.state_dict().items()} for each in (one, other))
    return mine.keys() == others.keys() and all(np.array_equal(value, others[name]) for name, value in mine.items())
