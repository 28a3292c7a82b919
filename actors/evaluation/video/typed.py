"""The keys of a terminal, one by one. A terminal says when a character is typed, and nothing when a key is released."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
from typing import Any

from actors.errors import EnvError
from actors.evaluation.video.pressed import Pressed
from actors.evaluation.video.window import WindowClosed

HELD_SECONDS = 0.15  # after its last character a key counts as held: repetitions come every 30 to 50 ms
ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}  # the last letter of ESC [ A, ESC O A or ESC [ 1 ; 2 A
NAMED = {" ": "space", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace", "\t": "tab", "\x1b": "escape"}
SEQUENCE = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|\x1b[\[O]?$|.", re.DOTALL)


def can_type() -> bool:
    """True where this process has a terminal whose keys can be read."""
    return sys.platform != "win32" and sys.__stdin__ is not None and sys.__stdin__.isatty()


class TypedKeys:
    """Reads keys from a terminal, which until `close` neither shows them nor waits for a line. Ctrl-C stays a signal."""

    def __init__(self, pressed: Pressed, number: int) -> None:
        """`number`: the terminal's file descriptor. Raises EnvError where it is no terminal."""
        self._pressed, self._number, self._begun = pressed, number, ""
        self._held_seconds = 0.0 if pressed.repeat_seconds else HELD_SECONDS  # where steps are long, a character is one of them
        if sys.platform == "win32" or not os.isatty(number):
            raise EnvError("keys are read from a terminal, and this input is none")
        import termios
        import tty

        self._before: list[Any] = termios.tcgetattr(number)
        tty.setcbreak(number)

    def read(self) -> None:
        """Takes what has been typed. Raises WindowClosed where the terminal is gone."""
        found = bytearray()
        while select.select([self._number], [], [], 0)[0]:
            read = b""
            with contextlib.suppress(OSError):  # a pseudo-terminal whose other end is closed
                read = os.read(self._number, 1024)
            if not read:
                raise WindowClosed
            found += read
        fresh = found.decode(errors="ignore")
        parts = SEQUENCE.findall(self._begun + fresh)
        # The rest of a sequence may come later; the key Esc alone is the same character, and nothing follows it.
        self._begun = parts.pop() if parts and fresh and parts[-1] in ("\x1b", "\x1b[", "\x1bO") else ""
        for part in parts:
            key = _key(part)
            if key:
                self._pressed.down(key, seconds=self._held_seconds)

    def close(self) -> None:
        if sys.platform != "win32":
            import termios

            with contextlib.suppress(termios.error):  # it is gone
                termios.tcsetattr(self._number, termios.TCSADRAIN, self._before)


def _key(part: str) -> str:
    if len(part) > 1:
        return ARROWS.get(part[-1], "")
    return NAMED.get(part) or (part.lower() if part.isascii() and part.isalnum() else "")
