"""Learning rates that fall during a run: their share of the configured one, by the environment steps that were collected."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from learner.config import LearnerConfig

# How far the rate has fallen when a share of the steps is done. The cosine is that of Loshchilov and Hutter 2017
# (arXiv:1608.03983, eq. 5), without restarts.
FALLEN: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 0.0,
    "linear": lambda done: done,
    "cosine": lambda done: 0.5 - 0.5 * math.cos(math.pi * done),
}


def share(config: LearnerConfig, steps: float) -> float:
    """The share of the learning rate after so many environment steps: from 1 to learner.learning_rate_end, then constant."""
    done = min(steps / config.schedule_steps, 1.0) if config.schedule_steps else 0.0
    return 1.0 - FALLEN[config.learning_rate_schedule](done) * (1.0 - config.learning_rate_end)


class Collected:
    """The environment steps of a run, over restarts of replay and of the learner: part of the checkpoints."""

    def __init__(self) -> None:
        self.steps = 0
        self._seen: list[int] = []

    def follow(self, counts: Sequence[int]) -> None:
        """`counts`: what each replay process has collected since it was started; 0 of one that has not been heard of yet. A new
        process counts anew."""
        before = self._seen if len(self._seen) == len(counts) else [0] * len(counts)
        self.steps += sum(now - then if now >= then else now for now, then in zip(counts, before, strict=True))
        self._seen = [now or then for now, then in zip(counts, before, strict=True)]

    def state(self) -> list[int]:
        return [self.steps, *self._seen]

    def load_state(self, numbers: Sequence[int]) -> None:
        """Restores what state() returned; of a checkpoint of an older version nothing. Raises ValueError or TypeError."""
        self.steps, *self._seen = [int(number) for number in numbers] or [0]
