"""Reads what has been added to a file of lines, and no line twice."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

BLOCK_BYTES = 1_000_000
LONGEST_LINE_BYTES = 1_000_000  # a longer line, which no process of a run writes, loses its end


class NewLines:
    """The lines of a file that is appended to and rotated to NAME.1, NAME.2, …"""

    def __init__(self, path: Path, last_bytes: int | None = None) -> None:
        """Begins with the oldest rotated file, or with the last `last_bytes` of the newest one."""
        self._path, self._last_bytes = path, last_bytes
        self._inode: int | None = None
        self._offset = 0
        self._rest = b""

    def blocks(self) -> Iterator[list[bytes]]:
        """Whole lines that are new since the last call, without their ends, many at a time."""
        with ExitStack() as opened:
            for file in self._unread(opened):
                found = os.fstat(file.fileno())
                if found.st_ino != self._inode:
                    self._inode, self._offset, self._rest = found.st_ino, self._first_offset(file, found.st_size), b""
                elif found.st_size < self._offset:
                    self._offset, self._rest = 0, b""
                yield from self._read(file)

    def _unread(self, opened: ExitStack) -> list[BinaryIO]:
        """The file that was read last and all newer ones, the oldest first; all there are if that one is gone."""
        newest, begun = _open([self._path], opened), self._inode is not None
        if (newest and _inode(newest[0]) == self._inode) or (not begun and self._last_bytes is not None):
            return newest
        # Opened from the newest on: a rotation meanwhile moves each file to a name that is opened later, so none is missed.
        files = newest + _open(reversed(rotated(self._path)), opened)
        inodes = [_inode(file) for file in files]
        if self._inode in inodes:
            files = files[: inodes.index(self._inode) + 1]
        elif begun and not newest:  # it cannot be opened now
            return []
        return list({_inode(file): file for file in reversed(files)}.values())

    def _first_offset(self, file: BinaryIO, size: int) -> int:
        if self._inode is not None or self._last_bytes is None or size <= self._last_bytes:
            return 0
        file.seek(size - self._last_bytes)
        file.readline(LONGEST_LINE_BYTES)  # from the middle of a line
        return file.tell()

    def _read(self, file: BinaryIO) -> Iterator[list[bytes]]:
        with suppress(OSError):
            file.seek(self._offset)
            while block := file.read(BLOCK_BYTES):
                self._offset += len(block)
                *lines, self._rest = (self._rest + block).split(b"\n")
                self._rest = self._rest[:LONGEST_LINE_BYTES]
                if lines:
                    yield lines


def _open(paths: Iterable[Path], opened: ExitStack) -> list[BinaryIO]:
    """The files that can be opened."""
    files: list[BinaryIO] = []
    for path in paths:
        with suppress(OSError):
            files.append(opened.enter_context(path.open("rb")))
    return files


def _inode(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_ino


def files_in(folder: Path, pattern: str) -> list[Path]:
    """The files of a folder whose names fit; none where it is removed, also between two looks of `glob`, which then raises."""
    try:
        return list(folder.glob(pattern))
    except OSError:
        return []


def rotated(path: Path) -> list[Path]:
    """NAME.3, NAME.2, NAME.1: the oldest first."""
    found = ((older.name.removeprefix(f"{path.name}."), older) for older in files_in(path.parent, f"{path.name}.*"))
    return [older for _, older in sorted(((int(number), older) for number, older in found if number.isdigit()), reverse=True)]
