"""File locks that the system releases when their process ends, however it ends."""

from __future__ import annotations

import os
from typing import IO

if os.name == "posix":
    import fcntl
else:
    import msvcrt

OFFSET = 1 << 30  # of the locked byte on Windows: far behind the content, because a locked byte cannot be read there


def try_lock(file: IO[bytes]) -> bool:
    """Locks an open file exclusively; False if another process, or another open file object, has the lock."""
    try:
        if os.name == "posix":
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            file.seek(OFFSET)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        return False
    return True


def is_locked(file: IO[bytes]) -> bool:
    """Whether another process, or another open file object, has the lock. On POSIX many can look at once and find it free."""
    if os.name != "posix":
        found = not try_lock(file)
    else:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            found = False
        except OSError:
            found = True
    if not found:
        unlock(file)
    return found


def unlock(file: IO[bytes]) -> None:
    if os.name == "posix":
        fcntl.flock(file, fcntl.LOCK_UN)
    else:
        file.seek(OFFSET)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]
