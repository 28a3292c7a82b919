"""Shows a run on the terminal until it is over or the user leaves."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group

from deploy.reporting.terminal.keys import Left, key, single_keys
from deploy.reporting.terminal.screen import Form, draw
from deploy.reporting.terminal.view import View

WATCH_SECONDS, DUMB_SECONDS = 1.0, 5.0  # between two pictures
KEY_SECONDS = 0.2  # so soon a key, or another size of the terminal, takes effect
LEAST_WIDTH = 20


def watch(read: Callable[[], View], over: Callable[[], bool], console: Console) -> None:
    """Returns when `over()`, or when the user leaves by q or Ctrl-C. What is no terminal gets one picture, and a terminal that
    cannot move its cursor one after the other."""
    if not console.is_terminal or over():
        show(read(), console)
        return
    try:
        if console.is_dumb_terminal:
            follow(read, over, console)
        else:
            stay(read, over, console)
    except (KeyboardInterrupt, Left):
        return
    if over():
        show(read(), console)  # the screen on which it was is gone


def show(shown: View, console: Console) -> None:
    for line in draw(shown, form_of(console, False)):
        console.print(line, no_wrap=True, highlight=False, overflow="ignore", crop=False)


def follow(read: Callable[[], View], over: Callable[[], bool], console: Console) -> None:
    while not over():
        show(read(), console)
        console.print()
        time.sleep(DUMB_SECONDS)


def stay(read: Callable[[], View], over: Callable[[], bool], console: Console) -> None:
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
    """`full`: the picture is as high as the terminal at most."""
    unicode = not console.options.ascii_only
    return Form(max(console.width, LEAST_WIDTH), console.height if full else 0, unicode)
