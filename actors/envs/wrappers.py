"""Small pieces between a simulator's frame and an agent's observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np

MAX_NOOPS = 30  # the usual bound of a random start


class FrameShrinker:
    """Turns a BGRX frame into a small grey one: the top rows masked to 0, then an area resize.

    One per environment: it keeps its grey buffer, so that a step allocates nothing but the result.
    """

    def __init__(self, height: int, width: int, masked_rows: int, size: int) -> None:
        """Prepares for frames [height, width, 4] uint8 and results [size, size] uint8."""
        self._grey = np.zeros((height, width), np.uint8)  # [height, width]; the masked rows stay 0 for good
        self._masked_rows = masked_rows
        self._size = (size, size)

    def __call__(self, frame: np.ndarray) -> np.ndarray:
        """Gives a new array [size, size] of `frame` [height, width, 4] (blue, green, red, unused)."""
        cv2.cvtColor(frame[self._masked_rows :], cv2.COLOR_BGRA2GRAY, dst=self._grey[self._masked_rows :])
        return cv2.resize(self._grey, self._size, interpolation=cv2.INTER_AREA)


def noop_frames(options: Mapping[str, Any] | None) -> int:
    """Reads reset's options["noops"], frames to idle after a reset. Raises ValueError beyond 0 to 30."""
    noops = int((options or {}).get("noops", 0))
    if not 0 <= noops <= MAX_NOOPS:
        raise ValueError(f"options['noops'] must be 0 to {MAX_NOOPS}, not {noops}")
    return noops
