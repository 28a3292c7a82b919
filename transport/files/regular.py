"""Opens the files of a run. In place of any of them may be a pipe, a device, a socket or a folder: nothing waits for it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Literal

ASIDE = ".aside"
NO_FILE = "it is not a regular file"
NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer is opened at once


def open_file(path: Path, mode: Literal["rb", "r+b", "ab", "a+b"] = "rb", flags: int = 0, permissions: int = 0o666) -> BinaryIO:
    """As open(). Raises OSError, also for anything but a regular file."""

    def opener(name: str, given: int) -> int:
        try:
            descriptor = os.open(name, given | flags | NO_WAIT, permissions)
        except PermissionError:
            if os.path.isdir(name):  # Windows opens no folder
                raise OSError(errno.EINVAL, NO_FILE, str(path)) from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, NO_FILE, str(path))
        return descriptor

    return open(path, mode, opener=opener)


def read_bytes(path: Path) -> bytes:
    """The content of a file. Raises OSError."""
    with open_file(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """As read_bytes(). Raises OSError, UnicodeDecodeError."""
    return read_bytes(path).decode()


def open_to_append(path: Path, permissions: int = 0o666) -> BinaryIO:
    """Opens a file to append to, which is made if there is none. What is no file is set aside. Raises OSError."""
    if os.path.lexists(path) and not os.path.isfile(path):
        os.replace(path, path.with_name(path.name + ASIDE))
    return open_file(path, "ab", 0, permissions)
