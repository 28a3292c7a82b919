"""Reads what has been added to a file of lines, and no line twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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
        try:
            found = self._path.stat()
        except OSError:
            return
        if self._inode is None:
            yield from self._before_first(found)
        elif found.st_ino != self._inode:
            yield from self._rest_of_rotated()
            self._offset, self._rest = 0, b""
        self._inode = found.st_ino
        if found.st_size < self._offset:
            self._offset, self._rest = 0, b""
        if found.st_size > self._offset:
            yield from self._read(self._path)

    def _before_first(self, found: os.stat_result) -> Iterator[list[bytes]]:
        if self._last_bytes is not None:
            if found.st_size > self._last_bytes:
                with suppress(OSError), self._path.open("rb") as file:
                    file.seek(found.st_size - self._last_bytes)
                    file.readline(LONGEST_LINE_BYTES)  # from the middle of a line
                    self._offset = file.tell()
            return
        for older in rotated(self._path):
            self._offset = 0
            yield from self._read(older)
        self._offset = 0

    def _rest_of_rotated(self) -> Iterator[list[bytes]]:
        for older in rotated(self._path):
            try:
                if older.stat().st_ino == self._inode:
                    yield from self._read(older)
            except OSError:
                continue

    def _read(self, path: Path) -> Iterator[list[bytes]]:
        try:
            with path.open("rb") as file:
                file.seek(self._offset)
                while block := file.read(BLOCK_BYTES):
                    self._offset += len(block)
                    *lines, self._rest = (self._rest + block).split(b"\n")
                    self._rest = self._rest[:LONGEST_LINE_BYTES]
                    if lines:
                        yield lines
        except OSError:
            return


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
