"""Where a person sees the environment and presses keys: a window, or the terminal."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Protocol, TextIO

import numpy as np

from actors.envs.foreign.keys import ARROWS, Keys
from actors.errors import EnvError
from actors.evaluation.video.overlay import GREY, LINE, TOP, WHITE, with_panel, write
from actors.evaluation.video.pressed import Pressed
from actors.evaluation.video.terminal import Terminal, can_show
from actors.evaluation.video.typed import TypedKeys
from actors.evaluation.video.window import Window, has_display
from transport.text import plain

COLUMNS = re.compile(" {2,}")
INSTEAD = "play in the terminal with --terminal"


class Screen(Protocol):
    pressed: Pressed

    def show(self, frame: np.ndarray, status: Sequence[str], keys: Sequence[str]) -> None:
        """Shows the picture [H, W, 3] and lines of text, once it is due. `keys`: what the keys do. Raises WindowClosed."""

    def say(self, line: str) -> None:
        """Prints a line, which stays."""

    def close(self) -> None: ...


class InWindow:
    """The text is at the right of the picture."""

    def __init__(self, title: str, rate: float, keys: Keys, pressed: Pressed, out: TextIO) -> None:
        """Raises EnvError."""
        self.pressed, self._out = pressed, out
        self._window = Window(title, rate, INSTEAD, pressed, sorted(keys.used - {*ARROWS}, key=_order))

    def show(self, frame: np.ndarray, status: Sequence[str], keys: Sequence[str]) -> None:
        whole, panel = with_panel(frame)
        lines = [*((text, WHITE) for text in status), ("", GREY), *((_brief(text), GREY) for text in keys)]
        for number, (text, colour) in enumerate(lines[: (len(panel) - TOP) // LINE + 1]):
            write(panel, text, number, colour)
        self._window.show(whole)

    def say(self, line: str) -> None:
        print(plain(line), file=self._out, flush=True)

    def close(self) -> None:
        self._window.close()


class InTerminal:
    """The text is below the picture."""

    def __init__(self, out: TextIO, rate: float, pressed: Pressed) -> None:
        """Raises EnvError."""
        self.pressed, self._out, self._said = pressed, out, list[str]()
        self._keys = TypedKeys(pressed, 0)
        self._terminal = Terminal(out, rate)

    def show(self, frame: np.ndarray, status: Sequence[str], keys: Sequence[str]) -> None:
        self._keys.read()
        below = textwrap.wrap(" · ".join(map(_brief, keys)), shutil.get_terminal_size().columns - 1)
        self._terminal.show(frame, [" · ".join(status), *below])

    def say(self, line: str) -> None:
        self._said.append(line)  # the picture is where it would be

    def close(self) -> None:
        self._keys.close()
        self._terminal.close()
        for line in self._said:
            print(plain(line), file=self._out, flush=True)


def open_screen(title: str, rate: float, keys: Keys, pressed: Pressed, terminal: bool, out: TextIO) -> Screen:
    """`rate`: pictures per second. Raises EnvError where neither is to be had."""
    if has_display() and not terminal:
        return InWindow(title, rate, keys, pressed, out)
    if not can_show(out) or not sys.__stdin__ or not sys.__stdin__.isatty():
        raise EnvError("there is neither a display for a window nor a terminal to play in: start it in a terminal")
    return InTerminal(out, rate, pressed)


def _brief(line: str) -> str:
    """A line of `Keys.lines` without its columns; a key that does what it is called is enough."""
    return ": ".join(dict.fromkeys(COLUMNS.split(line, 1)))


def _order(key: str) -> tuple[bool, str]:
    return key in ("enter", "shift", "ctrl"), key
