"""Where a person sees an environment and presses keys: a window, or the terminal."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Protocol, TextIO

import numpy as np

from actors.envs.foreign.keys import ARROWS
from actors.errors import EnvError
from actors.evaluation.video.overlay import GREY, LINE, TOP, WHITE, with_panel, write
from actors.evaluation.video.pressed import Pressed
from actors.evaluation.video.terminal import Terminal, can_show
from actors.evaluation.video.typed import TypedKeys, can_type
from actors.evaluation.video.window import INSTEAD, Window, check_display, has_display, has_pygame, missing_pygame
from transport.text import plain

COLUMNS = re.compile(" {2,}")


class Screen(Protocol):
    def show(self, frame: np.ndarray, status: Sequence[str] = (), keys: Sequence[str] = ()) -> None:
        """Shows the picture [H, W, 3] and lines of text, once it is due, and reads the keys. `keys`: what the keys do. Raises
        WindowClosed."""

    def say(self, line: str) -> None:
        """Prints a line, which stays."""

    def close(self) -> None: ...


class WindowScreen:
    """The text is at the right of the picture; a status alone is in the window's title."""

    def __init__(self, window: Window, title: str, out: TextIO) -> None:
        self._window, self._title, self._out = window, title, out

    def show(self, frame: np.ndarray, status: Sequence[str] = (), keys: Sequence[str] = ()) -> None:
        if keys:
            frame, panel = with_panel(frame)
            lines = [*((text, WHITE) for text in status), ("", GREY), *((_brief(text), GREY) for text in keys)]
            for number, (text, colour) in enumerate(lines[: (len(panel) - TOP) // LINE + 1]):
                write(panel, text, number, colour)
        elif status:
            self._window.set_title(" - ".join((self._title, *status)))
        self._window.show(frame)

    def say(self, line: str) -> None:
        print(plain(line), file=self._out, flush=True)

    def close(self) -> None:
        self._window.close()


class TerminalScreen:
    """The text is below the picture."""

    def __init__(self, out: TextIO, rate: float, pressed: Pressed | None) -> None:
        """Raises EnvError where no keys can be read."""
        self._out, self._said = out, list[str]()
        self._typed = None if pressed is None else TypedKeys(pressed, 0)
        self._terminal = Terminal(out, rate)

    def show(self, frame: np.ndarray, status: Sequence[str] = (), keys: Sequence[str] = ()) -> None:
        if self._typed is not None:
            self._typed.read()
        below = textwrap.wrap(" · ".join(map(_brief, keys)), shutil.get_terminal_size().columns - 1)
        self._terminal.show(frame, [" · ".join(status), *below] if status else below)

    def say(self, line: str) -> None:
        self._said.append(line)  # the next picture would overwrite it

    def close(self) -> None:
        if self._typed is not None:
            self._typed.close()
        self._terminal.close()
        for line in self._said:
            print(plain(line), file=self._out, flush=True)


def open_screen(
    title: str, rate: float, out: TextIO, pressed: Pressed | None = None, *, terminal: bool = False, instead: str = INSTEAD
) -> Screen:
    """Opens a window; without a display or pygame, or with `terminal`, it uses the terminal `out`. `rate`: pictures per second.
    `pressed` gets what is pressed, also on gamepads. `instead`: see Window. Raises EnvError where there is neither."""
    wanted = has_display() and not terminal
    usable = can_show(out) and (pressed is None or can_type())
    if wanted and (has_pygame() or not usable):
        used = pressed.keys.used if pressed is not None else frozenset[str]()
        buttons = sorted(used - {*ARROWS}, key=lambda key: (key in ("enter", "shift", "ctrl"), key))
        return WindowScreen(Window(title, rate, instead, pressed, buttons), title, out)
    if not usable and pressed is None:
        check_display(instead)
    elif not usable and sys.platform == "win32":
        raise EnvError("the keys of a terminal are not read on Windows: use a window")
    elif not usable:
        raise EnvError("there is neither a display for a window nor a terminal to type in: start it in a terminal")
    if wanted:
        print(f"in the terminal: {missing_pygame()}", file=out, flush=True)
    return TerminalScreen(out, rate, pressed)


def _brief(line: str) -> str:
    """A line of `Keys.lines` without its columns; a key that does what it is called is enough."""
    return ": ".join(dict.fromkeys(COLUMNS.split(line, 1)))
