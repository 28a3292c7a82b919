"""When a learner goes back to a checkpoint, and when there is no sense in doing that once more."""

from __future__ import annotations

from collections.abc import Mapping

MOST_IN_VAIN = 3  # times back without a checkpoint in between


class Diverged(RuntimeError):
    """Learning breaks down again and again: the text says what was seen and what to change, in one line."""


class Watch:
    """Looks at the figures of each epoch. Bad updates were skipped, so that they are trouble only when no good one follows."""

    def __init__(self, after: int) -> None:
        """`after` so many updates without a good one."""
        self._after = after
        self._ignoring = 0  # updates that found nothing finite to learn from
        self._refused = -1  # the newest version that was refused and has been dealt with
        self._in_vain = 0
        self.unsettled = False  # whether the last update was bad: no time for a checkpoint
        self.unsound = False  # a checkpoint was not written because weights are not finite

    def reason(self, figures: Mapping[str, float], updates: int, refused: int) -> str:
        """Why to go back, empty when there is no need. `figures` are of an epoch's last update and `updates` how many it had;
        `refused` is the newest version of the weights that was not finite."""
        skipped = int(figures["skipped_in_a_row"])
        self._ignoring = self._ignoring + updates if figures.get("ignored", 0.0) >= 1 else 0
        self.unsettled = skipped > 0
        if self.unsound or refused > self._refused:
            self.unsound = False
            return "weights are not finite"
        if max(skipped, self._ignoring) >= self._after:
            return f"{max(skipped, self._ignoring):,} updates in a row were not finite"
        return ""

    def go_back(self, reason: str, version: int) -> int:
        """How many times in a row that makes, from 1 on; all weights up to `version` are then of no concern. Raises Diverged
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
