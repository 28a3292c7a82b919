"""File locks that the system releases when their process ends, however it ends."""

from __future__ import annotations

import errno
import os
from typing import IO

if os.name == "posix":
    import fcntl
else:
    import msvcrt

NONE_THERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK)  # for example Lustre without `-o flock`
OFFSET = 1 << 30  # of the locked byte on Windows: far behind the content, because a locked byte cannot be read there


def try_lock(file: IO[bytes]) -> bool:
    """Locks an open file exclusively; False if another process, or another open file object, has the lock. Raises OSError where
    the file system has no locks."""
    try:
        if os.name == "posix":
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            file.seek(OFFSET)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError as error:
        if error.errno in NONE_THERE:
            raise OSError(error.errno, "this file system has no file locks, which a run needs", file.name) from error
        return False
    return True


def is_locked(file: IO[bytes]) -> bool:
    """True if another process, or another open file object, has the lock. On POSIX several processes can ask at once."""
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
