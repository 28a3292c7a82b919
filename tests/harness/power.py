"""A folder on a disk that may lose power at any moment: what it may hold then.

POSIX promises less than most file systems keep. What was written to a file since its last fsync may be there, be missing or
be torn. New, renamed and deleted names may be there or not until their folder is fsynced; they come in their order.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Names = dict[str, int]  # name -> inode
Held = dict[str, bytes]  # what a disk may hold after a power cut


class Disk:
    """Records what happens in one folder. `look` is called after each step; fsync, rename and unlink record themselves."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, kept: Path | None = None) -> None:
        """What the folder holds is on the disk. `kept` gets links to all files, or their inodes would be used again."""
        self.folder, self._kept = folder, kept or folder.with_name("kept")
        self._kept.mkdir()
        self._written: dict[int, bytes] = {}  # by inode
        self._synced: dict[int, bytes] = {}
        self._names: list[Names] = [{}]  # the first is on the disk, the others may be
        self._lock = threading.RLock()
        self.look()
        self._names, self._synced = [self._names[-1]], dict(self._written)
        self._syncing = os.fsync
        monkeypatch.setattr(os, "fsync", self._fsync)
        for name in ("replace", "rename", "unlink", "remove"):
            monkeypatch.setattr(os, name, self._recording(getattr(os, name)))

    def look(self) -> None:
        with self._lock:
            names: Names = {}
            for entry in filter(os.DirEntry.is_file, os.scandir(self.folder)):
                names[entry.name] = entry.inode()
                if entry.inode() not in self._written:
                    os.link(entry.path, self._kept / str(entry.inode()))
                self._written[entry.inode()] = Path(entry.path).read_bytes()
            if names != self._names[-1]:
                self._names.append(names)

    def held(self) -> Iterator[Held]:
        """What the disk may hold if the power fails now."""
        with self._lock:
            for names in list(self._names):
                for content in (self._nothing_new, self._torn, self._all):
                    yield {name: content(inode) for name, inode in names.items()}

    def _nothing_new(self, inode: int) -> bytes:
        return self._synced.get(inode, b"")

    def _torn(self, inode: int) -> bytes:
        """The size has reached the disk, half of the content has not."""
        known, written = self._synced.get(inode, b""), self._written[inode]
        half = (len(known) + len(written)) // 2
        return written[:half] + bytes(len(written) - half) if len(written) > len(known) else known

    def _all(self, inode: int) -> bytes:
        return self._written[inode]

    def _recording(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*given: Any, **named: Any) -> Any:
            with self._lock:
                self.look()
                result = call(*given, **named)
                self.look()
                return result

        return recorded

    def _fsync(self, descriptor: int) -> None:
        with self._lock:
            self._syncing(descriptor)
            self.look()
            found = os.fstat(descriptor)
            if found.st_ino == self.folder.stat().st_ino:
                self._names = [self._names[-1]]
            elif found.st_ino in self._written:
                self._synced[found.st_ino] = self._written[found.st_ino]
