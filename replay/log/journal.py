"""Keeps the table across restarts: chunks in the segment log, priorities and counters in a state file."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from replay.config import ReplayConfig
from replay.log.files import is_regular, open_regular, remove_leftovers
from replay.log.segment_log import LOST, Background, SegmentLog
from replay.log.segments import LoggedChunk, LogRefused, Scan, read_chunk, scan, segments, start_of
from replay.log.state import read_state, write_state
from replay.table.layout import leaves_per_chunk
from replay.table.ring import Ring, RingState
from transport.compression import CorruptChunk
from transport.files.writing import replacing
from transport.messages.replay import Insert
from transport.metrics import Record
from transport.text import ProgressReport, say

STATE_FILE, ID_FILE = "state.npz", "run_id"
ID_LETTERS = 32
PROGRESS_SECONDS = 3.0
FSYNC_SECONDS = 5.0  # between flushes of chunks to the disk; a power cut loses at most about this much
SEGMENTS_PER_RING = 8  # so that few evicted chunks stay on the disk
SEGMENT_CHUNKS = 16  # per segment at least, so that a small table does not make very many files


class RestoreStopped(Exception):
    """The process was asked to stop during the restore."""


class Journal:
    """Restores a ring from a folder, then logs its chunks there. Used by the thread that owns the ring."""

    def __init__(
        self, folder: Path, ring: Ring, config: ReplayConfig, interrupted: Callable[[], bool], what: str = "items"
    ) -> None:
        """Restores `what`; `interrupted` is called often meanwhile. Raises LogRefused, RestoreStopped, OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        for path in filter(is_regular, folder.glob(f"*{LOST}")):
            say(f"the disk was full before this start: {path.stem} steps of experience were in memory only, and are lost")
            path.unlink()
        self._ring, self._config = ring, config
        self._state_path = folder / STATE_FILE
        run = run_id(folder / ID_FILE, say)
        found = scan(folder, ring.spec, run, say)
        self.counters = restore(ring, found, self._read_state(), interrupted, what)
        self._losses: Record = {"torn_chunks": found.torn, "damaged_chunks": found.damaged, "missing_chunks": found.missing}
        self._background = Background()
        chunks = max(ring.capacity // ring.spec.chunk_length // SEGMENTS_PER_RING, SEGMENT_CHUNKS)
        self.log = SegmentLog(folder, ring.spec, chunks, found, self._background, run)
        self._next_sync = time.monotonic() + min(FSYNC_SECONDS, config.state_seconds)
        self._next_state = time.monotonic() + config.state_seconds

    def next_sequence(self, writer: str, incarnation: int) -> int:
        """All chunks of an actor's incarnation with a smaller sequence have been logged."""
        logged, sequence = self.log.writers.get(writer, (incarnation, 0))
        return sequence if logged == incarnation else 0

    def append(self, writer: str, incarnation: int, message: Insert, parts: list[bytes]) -> None:
        """Logs the chunk that is inserted into the ring next."""
        self.log.append(self._ring.next_key, writer, incarnation, message, parts)
        self.log.evict_below(self._ring.oldest_key)

    def turn(self, counters: Callable[[], Record]) -> None:
        """Starts an fsync or a save when it is due. The background does the disk work; a save copies the priorities here."""
        now = time.monotonic()
        if now < self._next_sync or self._background.behind:
            return
        self._next_sync = now + min(FSYNC_SECONDS, self._config.state_seconds)
        self.log.sync()
        if now >= self._next_state:
            self._next_state = now + self._config.state_seconds
            self._save(counters())

    def figures(self) -> Record:
        """Metrics: bytes on disk, chunks that are not, and losses."""
        unsynced = self.log.unsynced
        return {
            "log_bytes": self.log.total_bytes,
            "unlogged_chunks": self.log.unlogged,
            "unsynced_chunks": unsynced.chunks,
            "unsynced_bytes": unsynced.bytes,
            **self._losses,
        }

    def close(self, counters: Callable[[], Record]) -> str:
        """Saves the state; returns when everything is on disk, or, in a line, what could not be written."""
        lost = self.log.close()
        self._save(counters())
        self._background.close()
        why, unsynced = self._background.failed, self.log.unsynced.chunks
        return "; ".join(
            text
            for amount, text in (
                (lost, f"{lost:,} steps of experience could not be written to the disk and are lost"),
                (unsynced, f"{unsynced:,} chunks may be lost in a power cut: they could not be synced"),
                (why, f"priorities and counters since the last save are lost ({why})"),
            )
            if amount
        )

    def _save(self, counters: Record) -> None:
        state = replace(self._ring.state(), counters=counters)
        self._background.submit(lambda: write_state(self._state_path, state))

    def _read_state(self) -> RingState | None:
        """Reads the saved state and resumes the ring from it; None if there is no usable one."""
        try:
            state = read_state(self._state_path, leaves_per_chunk(self._ring.spec))
            if state:
                self._ring.resume(state)
            return state
        except ValueError as error:  # damaged, or of another selector
            say(f"{error}: all items start with their initial priorities")
            return None


def run_id(path: Path, report: Callable[[str], None] = lambda line: None) -> str:
    """The id of this run, which its segments carry; made if there is none. Raises LogRefused, OSError.

    A file that is lost, or has an id that no segment carries, does not decide over the segments: the id of most of them does.
    """
    noted, carried = noted_id(path), carried_ids(path.parent)
    if noted and (noted in carried or not carried):
        return noted
    new = _majority(path, carried) if carried else secrets.token_hex(ID_LETTERS // 2)
    if carried:
        report(f"{path} does not have the id of the segments beside it: it is written anew")
    with replacing(path) as file:  # on the disk before any segment that carries it, or a power cut would make that one foreign
        file.write(new.encode())
    return new


def noted_id(path: Path) -> str:
    """The id in the file; empty where there is none. Raises OSError."""
    try:
        with open_regular(path) as file:
            found = file.read(ID_LETTERS + 1).decode("ascii", "replace")
    except FileNotFoundError:
        return ""
    return found if len(found) == ID_LETTERS and found.isalnum() else ""


def carried_ids(folder: Path) -> Counter[str]:
    """The number of segments that carry each id; older versions wrote none into theirs."""
    found = Counter[str]()
    for path in segments(folder):
        with open_regular(path) as file:
            if (start := start_of(file)) and start.run:
                found[start.run] += 1
    return found


def _majority(path: Path, carried: Counter[str]) -> str:
    (most, count), total = carried.most_common(1)[0], carried.total()
    if 2 * count <= total:
        raise LogRefused(
            f"{path} is lost or damaged, and the {total} segments beside it are of {len(carried)} runs: move those of other runs "
            f"away, or write the id of this run into it; `headrace fsck` lists them"
        )
    return most


def newest_that_fit(ring: Ring, found: Scan) -> list[LoggedChunk]:
    """The newest chunks in the log, oldest first, that fill the ring."""
    rows, first = 0, len(found.entries)
    while first and (rows := rows + ring.own_rows(found.entries[first - 1].header.length)) <= ring.capacity:
        first -= 1
    return found.entries[first:]


def restore(ring: Ring, found: Scan, state: RingState | None, interrupted: Callable[[], bool], what: str = "items") -> Record:
    """Fills an empty ring with the newest chunks that fit; returns the server's counters. Raises RestoreStopped."""
    started = time.monotonic()
    newest = found.entries[-1].header.key if found.entries else -1
    wanted = newest_that_fit(ring, found)
    counters = dict(state.counters) if state else {}
    saved_next = state.next_chunk if state else 0
    unsaved = chunks = 0
    progress = ProgressReport(len(wanted), PROGRESS_SECONDS)
    for path, entries in groupby(wanted, lambda entry: entry.path):
        with open_regular(path) as file:
            for entry in entries:
                if interrupted():
                    raise RestoreStopped
                if progress.due:
                    say(f"restoring: {ring.size:,} {what} so far ({chunks / len(wanted):.0%}){progress.left(chunks)}")
                try:
                    chunk = read_chunk(file, entry, ring.spec)
                except CorruptChunk:
                    found.damaged += 1
                    continue
                items = ring.restore(entry.header.key, chunk)
                chunks += 1
                if entry.header.key >= saved_next:
                    unsaved += items
                    counters["inserted_chunks"] = counters.get("inserted_chunks", 0) + 1
    if chunks and (evicted := wanted[0].header.key - saved_next) > 0:  # since the save: each had about as many items as these
        unsaved += evicted * ring.size // chunks
        counters["inserted_chunks"] = counters.get("inserted_chunks", 0) + evicted
    known_to = max(newest + 1, found.purged_to)
    found.missing = max(saved_next - known_to, 0)
    ring.skip_to(max(saved_next, known_to))
    ring.inserted_items += unsaved
    if state:
        ring.restore_priorities(state)
    counters["inserted_steps"] = float(ring.inserted_items)
    counters.setdefault("sampled_items", float(ring.sampled_items))  # which is without demonstrations and human steps
    if found.entries or found.torn or found.damaged or found.missing:
        lost = "".join(
            f", {number:,} {how}" for number, how in ((found.damaged, "damaged"), (found.missing, "missing at the end")) if number
        )
        say(f"restored {ring.size:,} {what} in {time.monotonic() - started:.1f} s ({found.torn:,} torn{lost})")
    return counters
