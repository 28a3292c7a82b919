"""Rollback: returns to a checkpoint when training has diverged, and stops the run when that does not help."""

from __future__ import annotations

from collections.abc import Mapping

from learner.saving.training_checkpoints import TrainingCheckpoints
from learner.serving.publish import Publication
from learner.updates.base import Backend, Update
from transport.metrics import Metrics

MOST_ROLLBACKS = 3  # in a row, without a new checkpoint in between


class Diverged(RuntimeError):
    """Training diverges again and again; the message says in one line what was seen and what to change."""


class Watch:
    """Decides from the metrics of each epoch whether training has diverged.

    An update that is not finite is skipped, so it does no harm; only many of them in a row do.
    """

    def __init__(self, after: int) -> None:
        """`after`: updates in a row that may be not finite."""
        self._after = after
        self._ignoring = 0  # updates in a row whose items were all not finite
        self._refused = -1  # newest version that was not published and has been rolled back from
        self._rollbacks = 0  # since the last checkpoint
        self.unsettled = False  # the last update was not finite: write no checkpoint now

    def reason(self, figures: Mapping[str, float], updates: int, refused: int, unsound: bool) -> str:
        """Why to roll back; empty when there is no need.

        `figures` are the metrics of an epoch's last update, `updates` the number of its updates. `refused` is the newest version
        that was not published because it was not finite; `unsound`: a checkpoint was not written for the same reason.
        """
        skipped = int(figures["skipped_in_a_row"])
        self._ignoring = self._ignoring + updates if figures.get("ignored", 0.0) >= 1 else 0
        self.unsettled = skipped > 0
        if unsound or refused > self._refused:
            return "weights are not finite"
        if max(skipped, self._ignoring) >= self._after:
            return f"{max(skipped, self._ignoring):,} updates in a row were not finite"
        return ""

    def go_back(self, reason: str, version: int) -> int:
        """Counts a rollback: returns the number in a row, from 1 on. Versions up to `version` no longer count as refused.
        Raises Diverged after MOST_ROLLBACKS."""
        if self._rollbacks >= MOST_ROLLBACKS:
            raise Diverged(
                f"training has diverged ({reason}) again after {self._rollbacks} rollbacks: look for huge rewards or "
                "observations, lower learner.learning_rate, or use learner.precision float32"
            )
        self._rollbacks += 1
        self._refused = version
        self._ignoring = 0
        return self._rollbacks

    def progressed(self) -> None:
        """A checkpoint has been written: rollbacks are counted from 0 again."""
        self._rollbacks = 0


class Rollback:
    """Restores a checkpoint when training has diverged."""

    def __init__(
        self,
        update: Update,
        runtime: Backend,
        checkpoints: TrainingCheckpoints,
        publication: Publication,
        metrics: Metrics,
    ) -> None:
        self._update, self._runtime, self._group = update, runtime, runtime.group
        self._checkpoints, self._publication, self._metrics = checkpoints, publication, metrics
        self._watch = Watch(runtime.config.rollback_after)
        self._updates = metrics.value("updates")  # at the end of the previous epoch

    @property
    def unsettled(self) -> bool:
        """True if the last update was not finite: write no checkpoint now."""
        return self._watch.unsettled

    def progressed(self) -> None:
        """Call it after each checkpoint."""
        self._watch.progressed()

    def go_back_if_needed(self, figures: Mapping[str, float]) -> bool:
        """Restores the newest undamaged checkpoint if training has diverged; at the next rollback in a row, the one before it.

        All processes of the group do so together. Version, epoch and random numbers continue. Raises Diverged.
        """
        updates, self._updates = self._metrics.value("updates") - self._updates, self._metrics.value("updates")
        unsound, self._checkpoints.unsound = self._checkpoints.unsound, False
        reason = self._watch.reason(figures, int(updates), self._publication.refused_version, unsound)
        if not self._group.any(bool(reason)):
            return False
        reason = reason or "another process of the group has diverged"
        times = self._watch.go_back(reason, self._publication.version)
        self._metrics.count("rollbacks")
        path = self._checkpoints.go_back(passing_over=times - 1)
        if path is None:
            self._runtime.reset_skips()
            self._group.say(f"{reason}, and there is no checkpoint to restore yet; training continues")
            return True
        self._group.equalise(parameter for module in self._update.modules.values() for parameter in module.parameters())
        self._group.say(f"{reason}: goes back to {path.name}, published as policy v{self._publication.version + 1}")
        return True
