"""Acting on a CPU, without torch where possible: the protocol of an inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from learner.devices.errors import DeviceError
from transport.experience import Columns

PRECISIONS = ("auto", "float32", "bfloat16", "int8")  # of convolutions


def check_precision(name: str) -> None:
    """Raises DeviceError for an unknown precision."""
    if name not in PRECISIONS:
        raise DeviceError(f"precision {name} is not available for acting: use one of {', '.join(PRECISIONS)}")


class Inference(Protocol):
    """A policy's network as an actor runs it. Before the first load() its weights are zeros or random."""

    state: Mapping[str, tuple[int, ...]]

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """The weights in use, by their names in the policy's state_dict."""

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Adopts all weights, or none and raises CheckpointError."""

    def __call__(self, observation: Columns, state: Columns) -> tuple[np.ndarray, Columns]:
        """Observations [K, stack, *shape] as stored, and the state -> outputs [K, outputs] float32, and the next state."""
