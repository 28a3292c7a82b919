"""Means of a network's weights over its last updates."""

from __future__ import annotations

import numpy as np

from learner.engine.module import Module

AVERAGE_INTERVAL = 10  # updates; averaging at each of them would cost more and change nothing


def average_share(updates: float, window: int) -> float:
    """The share of the newest weights in their mean over about the last `window` updates, and at first over a tenth of all, after
    update number `updates`; 0 where the mean stays as it is."""
    if updates % AVERAGE_INTERVAL:
        return 0.0
    return AVERAGE_INTERVAL / max(min(window, updates // 10), AVERAGE_INTERVAL)


def average_into(average: Module, source: Module, updates: float, window: int) -> None:
    """Moves the trained tensors of `average` by average_share()."""
    if share := average_share(updates, window):
        average.flat += np.float32(share) * (source.flat - average.flat)
