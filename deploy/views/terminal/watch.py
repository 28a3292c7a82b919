"""Shows a run on the terminal until it is over or the user leaves."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rich.console import Console, Group

from deploy.recorded.run import RecordedRun
from deploy.views.terminal.screen import Form, RunView, draw

WATCH_SECONDS, DUMB_SECONDS = 1.0, 5.0  # between two pictures
KEY_SECONDS = 0.2  # a key, or a new size of the terminal, takes effect within this time
LEAST_WIDTH = 20


def view(recorded: RecordedRun) -> RunView:
    """Takes what is new in the files of the run."""
    recorded.read()
    returns = recorded.grid.column("actors.episode_return")
    return RunView(recorded.status(), [float(value) for value in returns], list(recorded.events), time.time())


def watch(read: Callable[[], RunView], over: Callable[[], bool], console: Console) -> None:
    """Returns when `over()`, or when the user leaves by q or Ctrl-C. An output that is not a terminal gets one picture. A
    terminal that cannot move its cursor gets one picture after the other."""
    if not console.is_terminal or over():
        show(read(), console)
        return
    try:
        if console.is_dumb_terminal:
            print_repeatedly(read, over, console)
        else:
            fill_screen(read, over, console)
    except (KeyboardInterrupt, Terminated):
        return
    if over():
        show(read(), console)  # the full screen is closed: without this nothing of the run would stay visible


def show(shown: RunView, console: Console) -> None:
    for line in draw(shown, form_of(console, False)):
        console.print(line, no_wrap=True, highlight=False, overflow="ignore", crop=False)


def print_repeatedly(read: Callable[[], RunView], over: Callable[[], bool], console: Console) -> None:
    while not over():
        show(read(), console)
        console.print()
        time.sleep(DUMB_SECONDS)


def fill_screen(read: Callable[[], RunView], over: Callable[[], bool], console: Console) -> None:
    with single_keys(), console.screen(hide_cursor=True) as screen:
        while not over():
            shown, due = read(), time.monotonic() + WATCH_SECONDS
            size = None
            while time.monotonic() < due:
                if size != console.size:
                    size = console.size
                    screen.update(Group(*draw(shown, form_of(console, True))))
                if key(KEY_SECONDS) in ("q", "Q"):
                    return


def form_of(console: Console, full: bool) -> Form:
    """`full`: the picture is at most as high as the terminal."""
    unicode = not console.options.ascii_only
    return Form(max(console.width, LEAST_WIDTH), console.height if full else 0, unicode)


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
