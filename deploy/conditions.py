"""The conditions of `deploy.pause_on`: what the system says about its battery and its screen.

A thread asks, since an answer may take long; the supervisor reads the newest one.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

import psutil

ASK_SECONDS = 3.0
ANSWER_SECONDS = 2.0  # of another program
ACTIVE_WINDOW = re.compile(r"# (0x[0-9a-f]*[1-9a-f][0-9a-f]*)")  # of xprop's `_NET_ACTIVE_WINDOW(WINDOW): window id # 0x1a0000b`
BUSY_SCREEN = (2, 3, 4)  # Windows: a program over the whole screen, one that draws by Direct3D, a presentation


class Unknown(Exception):
    """The system does not tell. The text says why."""


def on_battery() -> bool:
    """Raises Unknown."""
    try:
        found = psutil.sensors_battery()
    except (AttributeError, OSError, RuntimeError, ValueError) as error:
        raise Unknown(f"this system does not tell of its battery ({type(error).__name__})") from None
    if found is None or found.power_plugged is None:
        raise Unknown("this machine tells of no battery")
    return not found.power_plugged


def fullscreen() -> bool:
    """True while the program in front has the whole screen. Raises Unknown."""
    if sys.platform == "win32":
        state = ctypes.c_int()
        if ctypes.windll.shell32.SHQueryUserNotificationState(ctypes.byref(state)):
            raise Unknown("Windows does not tell what is on the screen")
        return state.value in BUSY_SCREEN
    if os.environ.get("XDG_SESSION_TYPE") == "wayland":
        raise Unknown("Wayland does not tell other programs what is on the screen")
    if not os.environ.get("DISPLAY"):
        raise Unknown("there is no X display (DISPLAY)")
    window = ACTIVE_WINDOW.search(_xprop("-root", "_NET_ACTIVE_WINDOW"))
    return window is not None and "_NET_WM_STATE_FULLSCREEN" in _xprop("-id", window[1], "_NET_WM_STATE")


def _xprop(*words: str) -> str:
    """What xprop prints; nothing about a window that has just been closed. Raises Unknown."""
    command = ("xprop", *words)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS, check=False)
    except FileNotFoundError:
        raise Unknown("xprop is not installed (x11-utils)") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise Unknown(f"xprop gives no answer ({type(error).__name__})") from None
    if done.returncode and "-root" in words:
        raise Unknown(f"xprop: {done.stderr.strip() or f'exit {done.returncode}'}")
    return done.stdout


Check = Callable[[], bool]
CONDITIONS: Mapping[str, tuple[Check, str]] = {  # by their names in `deploy.pause_on`; how they read
    "battery": (on_battery, "on battery"),
    "fullscreen": (fullscreen, "behind a full-screen program"),
}


class Conditions:
    """Asks every few seconds, from `start` to `close`. Where the system does not tell, a condition does not hold."""

    def __init__(
        self, names: Sequence[str], say: Callable[[str], None], known: Mapping[str, tuple[Check, str]] = CONDITIONS
    ) -> None:
        """`say` gets a line for each condition of which the system does not tell."""
        self.holds = ""  # the conditions that hold now, in words; empty where none does
        self._checks, self._say = {name: known[name] for name in names}, say
        self._unknown: set[str] = set()
        self._over = threading.Event()

    def start(self) -> None:
        if self._checks:
            threading.Thread(target=self._run, daemon=True).start()

    def ask(self) -> None:
        """Asks once."""
        self.holds = " and ".join(words for name, (check, words) in self._checks.items() if self._is_met(name, check))

    def close(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            self.ask()
            self._over.wait(ASK_SECONDS)

    def _is_met(self, name: str, check: Check) -> bool:
        try:
            met = check()
        except Unknown as error:
            if name not in self._unknown:
                self._unknown.add(name)
                self._say(f"deploy.pause_on {name}: {error}, so the run does not pause for it")
            return False
        self._unknown.discard(name)
        return met
