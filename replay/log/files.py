"""Opens and moves files in the folder of the log, which may hold what replay has not written: links, pipes, folders, files."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from transport.files.documents import ASIDE, open_file
from transport.files.writing import remove, replace, tidy

BINARY = getattr(os, "O_BINARY", 0)
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


def is_regular(path: Path) -> bool:
    """True for a file itself, not for a link to one. False where there is nothing."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def open_regular(path: Path, change: bool = False) -> BinaryIO:
    """Opens a file that exists, to read and, with `change`, to write. Raises OSError, also for a link."""
    return open_file(path, "r+b" if change else "rb", NO_LINKS)


def open_new(path: Path) -> BinaryIO:
    """Makes a file to write to; an empty file of that name is replaced, anything else is set aside. Raises OSError."""
    if is_regular(path) and not path.stat().st_size:
        remove(path)
    elif os.path.lexists(path):
        set_aside(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS | BINARY, 0o600)
    return os.fdopen(descriptor, "wb", buffering=0)


def remove_leftovers(folder: Path) -> None:
    """Deletes partial files of processes that were killed, here and below. Raises OSError."""
    for path in folder.rglob(".*.partial"):
        if is_regular(path):
            tidy(path)


def set_aside(path: Path) -> Path:
    """Renames what is not replay's, so that it is neither read nor overwritten; returns the new path. Raises OSError."""
    target = free_name(path.with_name(path.name + ASIDE))
    replace(path, target)
    return target


def free_name(path: Path) -> Path:
    """The path, or with a number at its end if there is something already."""
    target, number = path, 1
    while os.path.lexists(target):
        target, number = path.with_name(f"{path.name}.{number}"), number + 1
    return target
