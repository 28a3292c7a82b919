"""Locks on files that end with the process that holds them, however it ends."""

from __future__ import annotations

import os
from typing import IO

if os.name == "posix":
    import fcntl
else:
    import msvcrt

OFFSET = 1 << 30  # of the byte that is locked on Windows, where what is locked cannot be read: far behind any content


def try_lock(file: IO[bytes]) -> bool:
    """Locks an open file against all other processes, and other openings of it; False when one of them holds it."""
    try:
        if os.name == "posix":
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            file.seek(OFFSET)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        return False
    return True


def unlock(file: IO[bytes]) -> None:
    """Gives back what try_lock took."""
    if os.name == "posix":
        fcntl.flock(file, fcntl.LOCK_UN)
    else:
        file.seek(OFFSET)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]
