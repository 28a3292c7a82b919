"""When a learner goes back to a checkpoint, and when going back once more makes no sense."""

from __future__ import annotations

from collections.abc import Mapping

from learner.updates.base import Update
from learner.updates.runtime import LearnerRuntime
from learner.weights.publication import Publication
from learner.weights.training_checkpoints import TrainingCheckpoints
from transport.metrics import Metrics

MOST_IN_VAIN = 3  # times back without a checkpoint in between


class Diverged(RuntimeError):
    """Learning breaks down again and again: the text says what was seen and what to change, in one line."""


class Watch:
    """Looks at the figures of each epoch. Bad updates were skipped, so they are trouble only when no good one follows."""

    def __init__(self, after: int) -> None:
        """`after` so many updates without a good one."""
        self._after = after
        self._ignoring = 0  # updates in a row whose items were all not finite
        self._refused = -1  # the newest version that was refused and has been dealt with
        self._in_vain = 0
        self.unsettled = False  # whether the last update was bad: no time for a checkpoint

    def reason(self, figures: Mapping[str, float], updates: int, refused: int, unsound: bool) -> str:
        """Why to go back, empty when there is no need.

        `figures` are of an epoch's last update and `updates` how many it had; `refused` is the newest version of the weights
        that was not finite; `unsound`: a checkpoint was not written because weights are not finite.
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
        """How many times in a row that makes, from 1 on; all weights up to `version` then no longer count. Raises Diverged
        instead when it has not helped before."""
        if self._in_vain >= MOST_IN_VAIN:
            raise Diverged(
                f"learning has broken down ({reason}) again after going back {self._in_vain} times: look for huge rewards or "
                "observations, lower learner.learning_rate, or use learner.precision float32"
            )
        self._in_vain += 1
        self._refused = version
        self._ignoring = 0
        return self._in_vain

    def progressed(self) -> None:
        """A sound checkpoint has been written since."""
        self._in_vain = 0


class Rollback:
    """Goes back to a checkpoint when learning has broken down."""

    def __init__(
        self,
        update: Update,
        runtime: LearnerRuntime,
        checkpoints: TrainingCheckpoints,
        publication: Publication,
        metrics: Metrics,
    ) -> None:
        self._update, self._runtime, self._group = update, runtime, runtime.group
        self._checkpoints, self._publication, self._metrics = checkpoints, publication, metrics
        self._watch = Watch(runtime.config.rollback_after)
        self._updates = metrics.value("updates")  # at the end of the epoch before

    @property
    def unsettled(self) -> bool:
        """Whether the last update was bad: no time for a checkpoint."""
        return self._watch.unsettled

    def progressed(self) -> None:
        """A sound checkpoint has been written since."""
        self._watch.progressed()

    def go_back_if_needed(self, figures: Mapping[str, float]) -> bool:
        """To the newest sound checkpoint, once nothing has been learned for long; the next time in a row, to the one before.

        Every process of the group does. Version and epoch go on growing, random numbers go on. Raises Diverged.
        """
        updates, self._updates = self._metrics.value("updates") - self._updates, self._metrics.value("updates")
        unsound, self._checkpoints.unsound = self._checkpoints.unsound, False
        reason = self._watch.reason(figures, int(updates), self._publication.refused_version, unsound)
        if not self._group.any(bool(reason)):
            return False
        reason = reason or "another process says so"
        times = self._watch.go_back(reason, self._publication.version)
        self._metrics.count("rollbacks")
        path = self._checkpoints.go_back(passing_over=times - 1)
        if path is None:
            self._runtime.forget_trouble()
            self._group.say(f"{reason}, and there is no checkpoint yet to go back to; training goes on")
            return True
        self._group.equalise(parameter for module in self._update.modules.values() for parameter in module.parameters())
        self._group.say(f"{reason}: goes back to {path.name}, published as policy v{self._publication.version + 1}")
        return True
