"""Keys that are read one by one, without echo, and the terminal as it was when the block ends."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Terminated(Exception):
    """SIGTERM was received."""


@contextmanager
def single_keys() -> Iterator[None]:
    """Keys arrive without Enter. Ctrl-C still interrupts. SIGTERM raises Terminated, so that the terminal is put back first."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, leave)
    try:
        if sys.platform == "win32" or not sys.stdin.isatty():
            yield
            return
        import termios
        import tty

        descriptor = sys.stdin.fileno()
        kept = termios.tcgetattr(descriptor)
        try:
            tty.setcbreak(descriptor)
            yield
        finally:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, kept)
    finally:
        signal.signal(signal.SIGTERM, before)


def key(seconds: float) -> str:
    """The next key; empty if none is pressed within `seconds`."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return ""
    if sys.platform == "win32":
        import msvcrt

        time.sleep(seconds)
        return msvcrt.getwch() if msvcrt.kbhit() else ""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") if ready else ""
