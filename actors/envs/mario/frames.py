"""Turns an emulator's frame into an observation; reads the number of idle frames at reset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cv2
import numpy as np

from actors.envs.mario.constants import MAX_NOOPS


class FrameShrinker:
    """Masks the top rows of a grey frame with 0 and resizes it by area.

    Each environment has its own, whose buffer is reused: a step allocates only the result.
    """

    def __init__(self, height: int, width: int, masked_rows: int, size: int) -> None:
        """Takes frames [height, width] and gives [size, size] uint8."""
        self._grey = np.zeros((height, width), np.uint8)  # [height, width]; the masked rows stay 0
        self._masked_rows = masked_rows
        self._size = (size, size)

    def __call__(self, draw_grey: Callable[[np.ndarray], object]) -> np.ndarray:
        """A new array [size, size]. `draw_grey` writes the rows below the mask, [R, width] uint8."""
        draw_grey(self._grey[self._masked_rows :])
        return cv2.resize(self._grey, self._size, interpolation=cv2.INTER_AREA)


def noop_frames(options: Mapping[str, Any] | None) -> int:
    """options["noops"]: idle frames after a reset. Raises ValueError outside 0 to 30."""
    noops = int((options or {}).get("noops", 0))
    if not 0 <= noops <= MAX_NOOPS:
        raise ValueError(f"options['noops'] must be 0 to {MAX_NOOPS}, not {noops}")
    return noops
