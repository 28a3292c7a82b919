"""Exploration: an epsilon for each environment."""

from __future__ import annotations

import numpy as np


def epsilon_ladder(offset: int, count: int, total: int, base: float, power: float) -> np.ndarray:
    """epsilon_i = base ** (1 + power * i / (N - 1)), [count] float32, for i = offset … offset + count - 1 of N = total.

    Horgan et al. 2018 (arXiv:1803.00933, section 4.1) with base 0.4, power 7. A single environment gets the middle of the ladder.
    """
    place = (offset + np.arange(count)) / (total - 1) if total > 1 else np.full(count, 0.5)
    return (base ** (1.0 + power * place)).astype(np.float32)
