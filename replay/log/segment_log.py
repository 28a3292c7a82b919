"""Writes acknowledged chunks to disk, in append-only segments. A segment is deleted when all its chunks have been evicted.

A chunk's record is written before the chunk is acknowledged, so nothing is lost if any process ends. A power cut may lose what
was written since the last fsync.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, NamedTuple

from replay.log.files import open_new
from replay.log.segments import SEGMENT_BYTES, ChunkHeader, Scan, SegmentStart, Writers, pack_record, segments
from transport.experience import ExperienceSpec
from transport.files.writing import sync_folder, tidy
from transport.messages.replay import Insert
from transport.text import say

RETRY_SECONDS = 5.0  # after an error of the disk
LOST = ".lost"  # ends the name of an empty file, all that a full disk takes: N.lost says that N steps were in memory only


class Background:
    """Runs tasks in order in one thread. A task must not use the table."""

    def __init__(self) -> None:
        self.failed = ""  # why the last task failed; empty if it did not
        self._tasks: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)
        self._thread.start()

    @property
    def behind(self) -> bool:
        return not self._tasks.empty()

    def submit(self, task: Callable[[], object]) -> None:
        self._tasks.put(task)

    def close(self) -> None:
        """Returns when all tasks are done."""
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            self.failed = ""
            try:
                task()
            except OSError as error:
                self.failed = str(error)
            except Exception as error:  # in a state of a user's selector, for example; the tasks after it must not wait for ever
                self.failed = f"{type(error).__name__}: {error}"
            if self.failed:
                say(f"replay could not write to the disk ({self.failed})")


class Amount(NamedTuple):
    chunks: int
    bytes: int


class SegmentLog:
    """Appends chunks. A full or broken disk raises no error: a line reports it, and after a while it tries again."""

    def __init__(
        self, folder: Path, spec: ExperienceSpec, segment_chunks: int, found: Scan, background: Background, run: str = ""
    ) -> None:
        """Continues after the chunks of `found`, in a new segment. `segment_chunks`: the limit of chunks per segment; `run`: the
        id that segments carry."""
        self._run = run
        self._folder, self._spec, self._segment_chunks, self._background = folder, spec, segment_chunks, background
        self.writers = found.writers
        last_keys = {path: -1 for path in segments(folder)}
        last_keys.update({entry.path: entry.header.key for entry in found.entries})
        self._closed = deque((path, key, path.stat().st_size) for path, key in last_keys.items())
        self._file: BinaryIO | None = None
        self._path = folder
        self._size = self._chunks = 0
        self._last_key = -1
        self._retry_at = 0.0
        self._failing = False
        self._unlogged: deque[tuple[int, int]] = deque()  # key and length of the chunks that are in memory only
        # Since the start. The background thread replaces _synced in one assignment.
        self._written = self._synced = Amount(0, 0)

    @property
    def unsynced(self) -> Amount:
        """Acknowledged chunks that a power cut would lose: written but not fsynced."""
        return Amount(self._written.chunks - self._synced.chunks, self._written.bytes - self._synced.bytes)

    @property
    def unlogged(self) -> int:
        """Chunks that were acknowledged without being written, and are lost if this process ends."""
        return len(self._unlogged)

    @property
    def total_bytes(self) -> int:
        return self._size + sum(size for _, _, size in self._closed)

    def append(self, key: int, writer: str, incarnation: int, message: Insert, parts: Sequence[bytes]) -> None:
        """Writes a chunk. Unless the disk fails, the chunk is then safe if this process ends."""
        writers_before = dict(self.writers) if self._file is None else {}
        self.writers[writer] = (incarnation, message.sequence + 1)
        if self._failing and time.monotonic() < self._retry_at:
            self._unlogged.append((key, message.length))
            return
        sizes = tuple(map(len, parts))
        sent = message.sequence, message.stream, message.length, message.crc32
        header = ChunkHeader(key, writer, incarnation, *sent, sizes, message.starts)
        try:
            if self._file is None:
                self._open(key, writers_before)
            record = pack_record(header, parts)
            self._write(record)
        except OSError as error:
            self._unlogged.append((key, message.length))
            self._fail(error)
            return
        if self._failing:
            self._failing = False
            say(f"the segment log can be written again; {self.unlogged:,} chunks are in memory only")
        self._last_key = key
        self._chunks += 1
        self._written = Amount(self._written.chunks + 1, self._written.bytes + len(record))
        if self._size >= SEGMENT_BYTES or self._chunks >= self._segment_chunks:
            self._finish()

    def evict_below(self, key: int) -> None:
        """Deletes the segments whose chunks all have smaller keys. Call it after an append."""
        while self._closed and self._closed[0][1] < key:
            path, _, _ = self._closed.popleft()
            self._background.submit(partial(tidy, path))
        if self._unlogged and self._unlogged[0][0] < key:
            while self._unlogged and self._unlogged[0][0] < key:
                self._unlogged.popleft()
            if not self._unlogged:
                self._note("")

    def sync(self) -> None:
        file, written = self._file, self._written
        if file is not None:
            self._background.submit(lambda: self._sync(file, written))

    def _sync(self, file: BinaryIO, written: Amount) -> None:
        """Runs in the background, in order: all earlier segments have been synced before."""
        os.fsync(file.fileno())
        self._synced = written

    def close(self) -> int:
        """Ends the segment; it is on disk when the background has ended. Returns the steps that are in memory only, and leaves a
        note of them for the next start."""
        self._finish()
        if lost := sum(length for _, length in self._unlogged):
            self._note(str(lost))
        return lost

    def _note(self, steps: str) -> None:
        """Replaces the note for the next start; empty: there is none."""
        with suppress(OSError):
            for path in self._folder.glob(f"*{LOST}"):
                path.unlink()
            if steps:
                (self._folder / f"{steps}{LOST}").touch()

    def _open(self, key: int, writers: Writers) -> None:
        self._path = self._folder / f"{key:016d}.segment"
        self._closed = deque(entry for entry in self._closed if entry[0] != self._path)  # an old file of that name has no chunks
        file = open_new(self._path)
        self._file, self._size, self._chunks = file, 0, 0
        try:
            self._write(pack_record(SegmentStart(self._spec.digest, key, writers, self._run)))
        except OSError:
            if self._file is not None:  # otherwise the background closes it
                self._file = None
                file.close()
            raise
        self._background.submit(lambda: sync_folder(self._folder))

    def _write(self, record: bytes) -> None:
        """Writes a record completely or, after an error, not at all."""
        file, left = self._file, memoryview(record)
        assert file is not None
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            try:
                file.seek(self._size)
                file.truncate()
            except OSError:
                self._finish()  # its last record is incomplete; the next attempt makes a new segment
            raise
        self._size += len(record)

    def _fail(self, error: OSError) -> None:
        self._retry_at = time.monotonic() + RETRY_SECONDS
        if not self._failing:
            self._failing = True
            self._note("some")
            say(
                f"the segment log cannot be written ({error.strerror}): training continues, but until it can be written, chunks "
                "are in memory only and are lost if this process ends; check the space on the disk"
            )

    def _finish(self) -> None:
        """Ends the current segment, if there is one."""
        file = self._file
        if file is None:
            return
        self._closed.append((self._path, self._last_key, self._size))
        self._file, self._size, self._chunks = None, 0, 0
        written = self._written

        def end() -> None:
            with file:
                self._sync(file, written)

        self._background.submit(end)
