"""Reads what has been added to a file of lines, and no line twice."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from transport.files.documents import open_file

BLOCK_BYTES = 1_000_000
HEAD_BYTES = 100  # of a file; its first line, which has a time, is in no other file
LONGEST_LINE_BYTES = 1_000_000  # a longer line, which no process of a run writes, loses its end


class NewLines:
    """The lines of a file that is appended to and rotated to NAME.1, NAME.2, …"""

    def __init__(self, path: Path, last_bytes: int | None = None) -> None:
        """Begins with the oldest rotated file, or with the last `last_bytes` of the newest one."""
        self._path, self._last_bytes = path, last_bytes
        self._known: _Identity | None = None  # of the file that was read last
        self._offset = 0
        self._rest = b""

    @property
    def position(self) -> int:
        """The end of the last whole line that was read, in the file that was read last."""
        return self._offset - len(self._rest)

    def blocks(self) -> Iterator[list[bytes]]:
        """Whole lines that are new since the last call, without their ends, many at a time."""
        with ExitStack() as opened:
            for file, identity in self._unread(opened):
                if not identity.same_as(self._known):
                    self._offset, self._rest = self._first_offset(file, identity.size), b""
                elif identity.size < self._offset:
                    self._offset, self._rest = 0, b""
                self._known = identity
                yield from self._read(file)

    def _unread(self, opened: ExitStack) -> list[tuple[BinaryIO, _Identity]]:
        """The file that was read last and all newer ones, the oldest first; all there are if that one is gone."""
        newest = _open([self._path], opened)
        if newest and newest[0][1].same_as(self._known):
            return newest
        if self._known is None and self._last_bytes is not None:
            return newest
        # Opened from the newest on: a rotation meanwhile moves each file to a name that is opened later, so none is missed.
        files = newest + _open(reversed(rotated(self._path)), opened)
        read = [number for number, (_, identity) in enumerate(files) if identity.same_as(self._known)]
        if read:
            files = files[: read[0] + 1]
        elif self._known is not None and not newest:  # it cannot be opened now
            return []
        return list({identity.inode: (file, identity) for file, identity in reversed(files)}.values())

    def _first_offset(self, file: BinaryIO, size: int) -> int:
        if self._known is not None or self._last_bytes is None or size <= self._last_bytes:
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


class _Identity(NamedTuple):
    """Tells a file from others, also from a later one to which the system gives the same inode when the first is deleted."""

    inode: int
    head: bytes
    size: int

    def same_as(self, earlier: _Identity | None) -> bool:
        return earlier is not None and self.inode == earlier.inode and self.head.startswith(earlier.head)


def _open(paths: Iterable[Path], opened: ExitStack) -> list[tuple[BinaryIO, _Identity]]:
    """The files that can be opened, but for those without content, which have no identity yet."""
    files: list[tuple[BinaryIO, _Identity]] = []
    for path in paths:
        with suppress(OSError):
            file = opened.enter_context(open_file(path))
            found = os.fstat(file.fileno())
            if head := file.read(HEAD_BYTES):
                files.append((file, _Identity(found.st_ino, head, found.st_size)))
    return files


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
