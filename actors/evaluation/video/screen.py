"""Where pictures are shown: in a window, or without a display in the terminal."""

from __future__ import annotations

from typing import TextIO

from actors.evaluation.video.terminal import Terminal, can_show
from actors.evaluation.video.window import Window, has_display


def in_terminal(out: TextIO) -> bool:
    return not has_display() and can_show(out)


def open_screen(title: str, frames_per_second: float, out: TextIO) -> Window | Terminal:
    """Raises EnvError where there is neither."""
    return Terminal(out, frames_per_second) if in_terminal(out) else Window(title, frames_per_second)
