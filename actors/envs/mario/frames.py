"""From an emulator's frame to an agent's observation, and the idle frames of a random start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cv2
import numpy as np

from actors.envs.mario.constants import MAX_NOOPS


class FrameShrinker:
    """Makes a small grey picture of a frame: the top rows masked to 0, then an area resize.

    One per environment: it keeps its grey buffer, so that a step allocates nothing but the result.
    """

    def __init__(self, height: int, width: int, masked_rows: int, size: int) -> None:
        """Prepares for frames of height x width and results [size, size] uint8."""
        self._grey = np.zeros((height, width), np.uint8)  # [height, width]; the masked rows stay 0 for good
        self._masked_rows = masked_rows
        self._size = (size, size)

    def __call__(self, draw_grey: Callable[[np.ndarray], object]) -> np.ndarray:
        """Gives a new array [size, size] of what `draw_grey` draws into the rows below the mask, [R, width] uint8."""
        draw_grey(self._grey[self._masked_rows :])
        return cv2.resize(self._grey, self._size, interpolation=cv2.INTER_AREA)


def noop_frames(options: Mapping[str, Any] | None) -> int:
    """Reads reset's options["noops"], frames to idle after a reset. Raises ValueError beyond 0 to 30."""
    noops = int((options or {}).get("noops", 0))
    if not 0 <= noops <= MAX_NOOPS:
        raise ValueError(f"options['noops'] must be 0 to {MAX_NOOPS}, not {noops}")
    return noops
