"""Writes, replaces, appends to and deletes files.

Other processes may have a file open, which Windows refuses to replace or delete until they have closed it.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from transport.files.documents import ASIDE, open_file

WINDOWS = os.name == "nt"
T = TypeVar("T")
PATIENCE_SECONDS, TURN_SECONDS = 2.0, 0.02


def patiently(act: Callable[[], T]) -> T:
    """What `act` returns, which is called on Windows again and again while a file is open elsewhere. Raises PermissionError where
    it stays open."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return act()
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


def open_to_append(path: Path, permissions: int = 0o666) -> BinaryIO:
    """Opens a file to append to, which is made if there is none. What is no file is set aside. Raises OSError."""
    if os.path.lexists(path) and not os.path.isfile(path):
        os.replace(path, path.with_name(path.name + ASIDE))
    return open_file(path, "ab", 0, permissions)


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file so that a reader sees the old content or the new content, never a part. Does not fsync."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    replace(temporary, path)


def write_durably(path: Path, data: bytes) -> None:
    """Replaces a file as `write_atomically` does, also in a power cut. Raises OSError."""
    with replacing(path) as file:
        file.write(data)


def link_or_copy(source: Path, target: Path) -> bool:
    """Gives a file, which nothing changes in place, a second name, or copies it where its file system cannot; returns whether it
    could. Raises OSError."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, one without hard links, or a file with very many names
        shutil.copy2(source, target)
        return False
    return True


def sync_folder(path: Path) -> None:
    """Writes a folder's entries (new, renamed, deleted files) to the disk. Does nothing on Windows, which cannot open folders."""
    if os.name != "posix":
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def rotate(path: Path, kept: int) -> None:
    """Renames `path` to NAME.1, the old NAME.1 to NAME.2 and so on; keeps at most `kept` of them. Raises OSError,
    on Windows at once where another program has one of them open: callers try again with their next line."""
    for number in range(kept, 1, -1):
        older = path.with_name(f"{path.name}.{number - 1}")
        if older.exists():
            os.replace(older, path.with_name(f"{path.name}.{number}"))
    os.replace(path, path.with_name(f"{path.name}.1"))


def append(path: Path, data: bytes, limit_bytes: int, kept: int) -> bool:
    """Appends to a file, which at `limit_bytes` is set aside; keeps at most `kept` older ones. Raises OSError.

    Returns whether it was set aside.
    """
    with open_to_append(path) as file:
        file.write(data)
        full = file.tell() >= limit_bytes
    if full:
        rotate(path, kept)
    return full


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to; at the end of the block it is fsynced and replaces `path`. After an error the old file stays.

    Until then its name begins with a dot and ends in .partial. Raises OSError, for example without space on the disk.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A file that the user has named, to write to, as with `replacing`. A link stays, and what it leads to is replaced; a
    device or a pipe is written to. Raises OSError."""
    with open(path, "wb") if is_special(path) else replacing(Path(os.path.realpath(path))) as file:
        yield file


def is_special(path: Path) -> bool:
    """True if the path leads to something that no file can replace: a device, a pipe, this process's own output."""
    if os.path.abspath(path).startswith(("/dev/", "/proc/")):
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False
