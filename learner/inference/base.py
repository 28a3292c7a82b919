"""A policy's forward pass on an actor's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from transport.experience import Columns


class Inference(Protocol):
    """Runs the policy's network, whatever computes it."""

    @property
    def state(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of one environment's state; it begins at zeros. {} without memory."""

    def __call__(self, observation: Columns, state: Columns) -> tuple[np.ndarray, Columns]:
        """{name: [K, stack, *shape]} as stored, {name: [K, *shape]} -> [K, outputs] float32, and the state after it."""
