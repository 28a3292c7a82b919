"""The full checkpoints of a run's learner: written, resumed from, gone back to."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from learner.config import LearnerSettings
from learner.devices.capabilities import fork_random
from learner.updates.base import Update
from learner.updates.runtime import LearnerRuntime
from learner.weights import checkpoint, resume
from learner.weights.checkpoint import CheckpointError, Checkpoints
from transport.lifetime import say
from transport.metrics import Metrics
from transport.run_dir import RunDir

COUNTERS = ("updates", "items")  # go on counting after a restart


class Reached(NamedTuple):
    """Where a checkpoint was written."""

    file: str
    epoch: int
    version: int


class TrainingCheckpoints:
    """Everything that an update and its optimisers are."""

    def __init__(
        self, settings: LearnerSettings, run_dir: RunDir, update: Update, runtime: LearnerRuntime, metrics: Metrics
    ) -> None:
        self._settings, self._run_dir, self._metrics = settings, run_dir, metrics
        self._update, self._runtime, self._group = update, runtime, runtime.group
        self._files = Checkpoints(run_dir.checkpoints, settings.learner.keep_checkpoints)
        self.unsound = False  # the last one was not written because weights are not finite

    def resume(self) -> Reached | None:
        """Takes up where this run's learner was at its newest sound checkpoint; None in a run that never wrote one. Raises
        CheckpointError."""
        found = self._files.newest(self._group.say)
        if found is None:
            if self._run_dir.latest.exists():
                raise CheckpointError(f"{self._run_dir.checkpoints} holds weights but no full checkpoint; start with --fresh")
            if self._settings.learner.weights:
                self._begin_with(Path(self._settings.learner.weights))
            return None
        path, tensors, metadata = found
        if metadata.get("spec_digest") != self._settings.spec.digest:
            raise CheckpointError(f"{path}: made for another experience spec; start with --fresh")
        try:
            counters = resume.restore(self._update, self._runtime, tensors, metadata)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}; start with --fresh") from error
        self._metrics.begin_at(counters)
        try:
            return Reached(path.name, int(metadata["epoch"]), int(metadata["policy_version"]))
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"{path}: not a learner's checkpoint ({error}); start with --fresh") from error

    def go_back(self, passing_over: int) -> Path | None:
        """Restores the newest sound one, `passing_over` so many; random numbers go on. None where there is none."""
        found = self._files.newest(self._group.say, passing_over)
        if found is None:
            return None
        path, tensors, metadata = found
        with fork_random(self._runtime.device):
            resume.restore(self._update, self._runtime, tensors, metadata)
        return path

    def save(self, epoch: int, version: int) -> bool:
        """Writes everything, then the policy alone for those who only act. What cannot be written (the disk is full) or must not
        (weights are not finite) is said and counted, and training goes on; False then.

        Rank 0 does: but for the state of their random numbers, all processes have the same.
        """
        if self._group.rank:
            return True
        about = self._about(epoch, version)
        counters = {name: self._metrics.value(name) for name in COUNTERS}
        try:
            self._files.write(epoch, *resume.gather(self._update, self._runtime, counters, about))
            checkpoint.write_listed(self._run_dir.latest, dict(self._update.modules["policy"].state_dict()), about)
        except OSError as error:
            self._metrics.count("failed_checkpoints")
            say(f"could not write a checkpoint ({error.strerror}); those before are kept and training goes on")
        except CheckpointError as error:
            self.unsound = True
            self._metrics.count("failed_checkpoints")
            say(f"no checkpoint is written ({error}); those before are kept")
        else:
            return True
        return False

    def _about(self, epoch: int, version: int) -> dict[str, str]:
        settings = self._settings
        about = {"policy_version": str(version), "epoch": str(epoch), "spec_digest": settings.spec.digest}
        return about | {"env": settings.env_id, "algorithm": settings.algorithm.name}

    def _begin_with(self, path: Path) -> None:
        """Takes a policy from elsewhere. Raises CheckpointError for one that was made for something else."""
        weights, metadata = checkpoint.read(path)
        if metadata.get("spec_digest") != self._settings.spec.digest:
            raise CheckpointError(
                f"--learner.weights {path}: made for {metadata.get('env', 'something')}, or with another algorithm"
            )
        checkpoint.load_into(self._update.modules["policy"], checkpoint.policy_weights(weights))
        self._group.say(f"begins with policy v{metadata.get('policy_version')} of {path}")
