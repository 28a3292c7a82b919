"""Replaces and deletes files that other processes may have open, which Windows refuses until they have closed them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

WINDOWS = os.name == "nt"
PATIENCE_SECONDS, TURN_SECONDS = 2.0, 0.02


def patiently(change: Callable[[], object]) -> None:
    """Calls `change`, on Windows again and again while a file is open elsewhere. Raises PermissionError where it stays open."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            change()
            return
        except PermissionError:
            if not WINDOWS or time.monotonic() >= deadline:
                raise
        time.sleep(TURN_SECONDS)


def replace(source: Path, target: Path) -> None:
    """Renames a file or folder; a file of the target's name is replaced. Raises OSError."""
    patiently(lambda: os.replace(source, target))


def remove(path: Path) -> None:
    """Deletes a file, if there is one. Raises OSError."""
    patiently(lambda: path.unlink(missing_ok=True))


def tidy(path: Path) -> None:
    """Deletes a file that nothing needs any more. One that stays open on Windows is left for the next call. Raises OSError."""
    try:
        remove(path)
    except PermissionError:
        if not WINDOWS:
            raise
        sys.stdout.write(f"{path} is open in another program; it will be deleted later\n")
        sys.stdout.flush()
