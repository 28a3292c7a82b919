"""Shows an environment's pictures in a terminal: two pixels in each character, by colours of 24 bits."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from typing import TextIO

import cv2
import numpy as np

UPPER = "\u2580"  # the upper half of a character's place
HIDE, SHOW, HOME, CLEAR, RESET = "\x1b[?25l", "\x1b[?25h", "\x1b[H", "\x1b[J", "\x1b[0m"
LEAST_LINES = 6  # of the picture, however much text is below it
SPARE_LINES = 2  # below the picture, for the line of an episode
MOST_PER_SECOND = 20.0  # pictures: more are more than terminals draw


def can_show(out: TextIO) -> bool:
    """True for a terminal that moves its cursor."""
    return out.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Terminal:
    """Shows frames [H, W, 3] uint8 where the text of the terminal was, as fast as the environment would run."""

    def __init__(self, out: TextIO, frames_per_second: float) -> None:
        self._out, self._seconds, self._due = out, 1 / frames_per_second, time.monotonic()
        self._drawn = 0.0
        out.write(f"{HIDE}{CLEAR}")

    def show(self, frame: np.ndarray, below: Sequence[str] = ()) -> None:
        """Waits until it is due. Where pictures come too fast, some are not drawn. `below`: lines of text."""
        now = time.monotonic()
        if now - self._drawn >= 1 / MOST_PER_SECOND:
            self._drawn = now
            columns, lines = shutil.get_terminal_size()
            text = "".join(f"{line[: columns - 1]}\x1b[K\n" for line in below[: lines - LEAST_LINES])
            spare = max(len(below) + 1, SPARE_LINES)
            self._out.write(f"{HOME}{draw(frame, columns, max(lines - spare, LEAST_LINES))}\n{text}{CLEAR}")
            self._out.flush()
        self._due = max(self._due + self._seconds, now)
        time.sleep(max(self._due - time.monotonic(), 0.0))

    def close(self) -> None:
        self._out.write(f"{RESET}{SHOW}\n")
        self._out.flush()


def draw(frame: np.ndarray, columns: int, lines: int) -> str:
    """The picture [H, W, 3] in at most so many columns and lines, its proportions kept."""
    height, width = frame.shape[:2]
    factor = min(columns / width, 2 * lines / height)
    size = max(round(width * factor), 1), 2 * max(round(height * factor / 2), 1)
    method = cv2.INTER_AREA if factor < 1 else cv2.INTER_NEAREST
    pixels = cv2.resize(np.ascontiguousarray(frame), size, interpolation=method)
    return "\n".join(_line(upper, lower) for upper, lower in zip(pixels[::2], pixels[1::2], strict=True))


def _line(upper: np.ndarray, lower: np.ndarray) -> str:
    """Two rows [W, 3] as one line of text. Colours are only said where they change."""
    parts, before = [], None
    for above, below in zip(upper.tolist(), lower.tolist(), strict=True):
        if (above, below) != before:
            before = (above, below)
            parts.append("\x1b[38;2;{};{};{};48;2;{};{};{}m".format(*above, *below))
        parts.append(UPPER)
    return "".join(parts) + RESET
