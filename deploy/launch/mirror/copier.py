"""Copies a run's sealed segments, checkpoints and descriptions to its mirror, and deletes there what the run no longer has.

Each file of the mirror is complete at any time, and a pass copies experience before the state that counts it. So a mirror can be
copied back at any time, however its run has ended. Keys, logs and metrics are not copied. The segment that replay is writing is
copied once it is sealed. The manifest of the checkpoints is never copied: without it each file is checked by its own checksum.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from deploy import runs
from deploy.launch.mirror.note import MirrorNote, read_note, write_note
from replay.log.files import open_regular, remove_leftovers
from replay.log.segments import segments
from transport.files.in_use import tidy
from transport.run_dir import RunDir, replacing

PIECE_BYTES = 1 << 22
SAME_SECONDS = 2.0  # by which times of one file may differ: not every file system keeps fractions
DESCRIPTIONS = ("config.toml", "spec.json", "spaces.json", "policy.json", "device.json")
SHARDS = "*-of-*"
RUN_ID = "run_id"  # before the segments, which without it are those of another run
LOG_FILES = ("state.npz", "shards")  # after the segments that they count
CHECKPOINTS = ("epoch-*.safetensors", "*.safetensors", "announced", "curriculum.json")
SEGMENTS = "replay/**/*.segment"
FULL = (errno.ENOSPC, errno.EDQUOT)
STATUS = "status.json"  # has the steps, and the next seed


class MirrorError(OSError):
    """Why nothing can be copied now; one line."""


class Version(NamedTuple):
    """A state of a file."""

    size: int
    changed: float


class Copier:
    """Used by one thread."""

    def __init__(self, run: RunDir, target: Path, beat: Callable[[], object]) -> None:
        """`beat` is called often while a file is copied. Raises MirrorError."""
        self._run, self.target, self._beat = run, target, beat
        note = read_note(run.path)
        if note is None or run.identity is None:
            raise MirrorError(f"{run.path} is no folder of a run that has a mirror")
        self._id, self._identity = note.id, run.identity
        self._copied: dict[str, Version] = {}  # by name in the folder: what the mirror has
        self.behind_bytes = 0  # that the running pass has still to copy

    def turn(self, sealed: bool = False) -> int:
        """One pass. Returns the bytes that were copied. `sealed`: replay has ended, so its newest segment is complete, too.

        Raises MirrorError, OSError; then the next pass goes on.
        """
        self._check()
        wanted = {name: version for name in self._names(sealed) if (version := _version(self._run.path / name))}
        changed = {name: version for name, version in wanted.items() if not self._has(name, version)}
        self.behind_bytes, copied = sum(version.size for version in changed.values()), 0
        steps, began = runs.read_steps(self._run), time.time()
        try:
            for name, version in changed.items():
                copied += self._copy(name)
                self.behind_bytes -= version.size
                self._copied[name] = version
        except OSError as error:
            if error.errno in FULL:  # and would stay so for good, with segments that the run has deleted
                self._remove_old(SEGMENTS)
            raise
        self.behind_bytes = 0
        if copied or sealed or (there := read_note(self.target)) is None or not there.copied:
            write_note(self.target, MirrorNote(self._id, began, steps, complete=sealed))
        self._remove_old(SEGMENTS, "checkpoints/*.safetensors")
        return copied

    def _check(self) -> None:
        """Raises MirrorError unless both folders are what they were."""
        if not self._is_there():
            raise MirrorError(f"the folder {self._run.path} is gone; its mirror {self.target} stays as it is")
        if not self.target.parent.is_dir():
            raise MirrorError(f"the folder {self.target.parent} of deploy.mirror is gone")
        note = read_note(self.target)
        if note is not None and note.id != self._id:
            raise MirrorError(f"{self.target} is the mirror of another run of this name")
        if note is None:
            self._copied.clear()  # it is new, or was lost
            if self.target.is_dir() and any(self.target.iterdir()) and not (self.target / DESCRIPTIONS[0]).exists():
                raise MirrorError(f"{self.target} holds something that is no mirror")
            self.target.mkdir(mode=0o700, exist_ok=True)
            write_note(self.target, MirrorNote(self._id))  # by which the next start knows it, should the first pass be cut short

    def _is_there(self) -> bool:
        """Whether the run's folder is the one that it was."""
        note, config = read_note(self._run.path), self._run.config
        return self._run.identity == self._identity and note is not None and note.id == self._id and config.is_file()

    def _names(self, sealed: bool) -> Iterator[str]:
        """The files of a mirror, in the order in which they are copied."""
        run = self._run
        yield from DESCRIPTIONS
        for pattern in CHECKPOINTS:  # before the log, which may take minutes, or have no room
            yield from self._relative(sorted(run.checkpoints.glob(pattern)))
        logs = [run.segments, *sorted(run.segments.glob(SHARDS))]
        for log in logs:
            found = segments(log)
            yield from self._relative([log / RUN_ID, *(found if sealed else found[:-1])])
        for log in logs:
            yield from self._relative([log / name for name in LOG_FILES])
        yield STATUS

    def _relative(self, paths: list[Path]) -> Iterator[str]:
        for path in paths:
            if not path.name.startswith("."):
                yield path.relative_to(self._run.path).as_posix()

    def _has(self, name: str, version: Version) -> bool:
        if (known := self._copied.get(name)) is not None:
            return known == version
        there = _version(self.target / name)
        same = there is not None and there.size == version.size and abs(there.changed - version.changed) < SAME_SECONDS
        if same:
            self._copied[name] = version
        return same

    def _copy(self, name: str) -> int:
        """The bytes copied; 0 for a file that the run has just deleted. Raises OSError."""
        try:
            source = open_regular(self._run.path / name)
        except FileNotFoundError:
            return 0
        target, size = self.target / name, 0
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with source, replacing(target) as file:
            found = os.fstat(source.fileno())
            while piece := source.read(PIECE_BYTES):
                size += file.write(piece)
                self._beat()
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
        return size

    def _remove_old(self, *patterns: str) -> None:
        """Removes what the run has deleted since. Never of a run whose folder is not there any more. Also removes what a copier
        that was killed has left."""
        remove_leftovers(self.target)
        old = [path for pattern in patterns for path in self.target.glob(pattern)]
        gone = [path for path in old if not os.path.lexists(self._run.path / path.relative_to(self.target))]
        if gone and self._is_there():
            for path in gone:
                tidy(path)


def _version(path: Path) -> Version | None:
    """None where there is no regular file."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return Version(found.st_size, found.st_mtime) if stat.S_ISREG(found.st_mode) else None
