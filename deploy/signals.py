"""The signals that ask a command to stop: Ctrl-C, SIGTERM, a closed terminal."""

from __future__ import annotations

import _thread
import ctypes
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from transport.lifetime import Handler, handle

STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")  # not every system has all
CONSOLE_ENDS = (2, 5, 6)  # Windows: the console is closed, the user logs off, the machine shuts down
GRACE_SECONDS = 5.0  # that Windows gives a process then


@contextmanager
def stop_signals(handler: Handler) -> Iterator[None]:
    """They call `handler` until the end of the block. One that nohup has switched off stays off."""
    numbers = [getattr(signal, name) for name in STOP_SIGNALS if hasattr(signal, name)]
    numbers = [number for number in numbers if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: handle(number, handler) for number in numbers}
    _listen_to_console(True)
    try:
        yield
    finally:
        _listen_to_console(False)
        for number, former in before.items():
            signal.signal(number, former)


def on_console_event(event: int) -> bool:
    """Called in a thread of its own. Windows ends the process as soon as this returns, so the stop happens meanwhile."""
    if event not in CONSOLE_ENDS:
        return False
    _thread.interrupt_main(signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    return True


if sys.platform == "win32":
    _listener = ctypes.WINFUNCTYPE(ctypes.c_int, ctypes.c_uint32)(on_console_event)  # Windows holds no reference to it

    def _listen_to_console(on: bool) -> None:
        ctypes.WinDLL("kernel32").SetConsoleCtrlHandler(_listener, on)
else:

    def _listen_to_console(on: bool) -> None:
        """Elsewhere a closed terminal sends SIGHUP."""
