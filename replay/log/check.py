"""Checks replay's logs on the disk: every record, checksum, id and key. Writes nothing unless a finding is repaired."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from replay.log.files import is_regular, open_regular, set_aside
from replay.log.journal import ID_FILE, STATE_FILE, carried_ids, noted_id, run_id
from replay.log.provenance import rewritten
from replay.log.segments import LogRefused, Scan, SegmentStart, pack_record, read_chunk, scan_segment, segments, start_of
from replay.log.shard_folders import COUNT_FILE, count_in_folders, log_folders, note, stored_shards
from replay.log.state import DamagedState, read_state
from replay.table.layout import leaves_per_chunk
from replay.table.ring import RingState
from transport.compression import CorruptChunk
from transport.experience import ExperienceSpec
from transport.files.writing import replacing


class Finding(NamedTuple):
    """Damage. `lost`: what is gone for good. `repair` makes the rest usable and keeps what it replaces; None: nothing can."""

    path: Path
    problem: str
    lost: str = ""
    repair: Callable[[], object] | None = None


def keep_aside(path: Path) -> Path:
    """Copies a file that is about to be replaced; returns the copy. Raises OSError."""
    moved = set_aside(path)
    shutil.copy2(moved, path)
    return moved


def check_logs(base: Path, spec: ExperienceSpec) -> Iterator[Finding]:
    """The damage in the logs of all shards. Raises OSError."""
    try:
        stored_shards(base)
    except LogRefused as error:
        counts = count_in_folders(base)
        repair = (lambda: (keep_aside(base / COUNT_FILE), note(base, counts[0]))) if len(counts) == 1 else None
        yield Finding(base / COUNT_FILE, str(error).partition(": ")[2] or str(error), repair=repair)
        return
    counts = count_in_folders(base)
    if counts and counts != [1] and not is_regular(base / COUNT_FILE):
        yield Finding(base / COUNT_FILE, "is lost", repair=lambda: note(base, counts[0]))
    for folder in log_folders(base):
        if folder.is_dir():
            yield from _check_log(folder, spec)


def _check_log(folder: Path, spec: ExperienceSpec) -> Iterator[Finding]:
    path, carried = folder / ID_FILE, carried_ids(folder)
    noted = noted_id(path) if is_regular(path) else ""
    most = max(carried, key=lambda run: carried[run], default="")
    if carried and noted not in carried:
        if 2 * carried[most] <= carried.total():
            runs = ", ".join(carried)
            yield Finding(path, f"is lost or damaged, and the segments beside it are of {len(carried)} runs: {runs}")
            return
        yield Finding(path, "does not have the id of the segments beside it", repair=lambda: run_id(path))
        noted = most
    try:
        state = read_state(folder / STATE_FILE, leaves_per_chunk(spec))
    except DamagedState as error:
        state = None
        lost = "priorities and counters: items start with their initial priorities"
        yield Finding(folder / STATE_FILE, str(error), lost, lambda: set_aside(folder / STATE_FILE))
    yield from _check_segments(folder, spec, noted, state)


def _check_segments(folder: Path, spec: ExperienceSpec, run: str, state: RingState | None) -> Iterator[Finding]:
    end: int | None = None  # the key after the last chunk that is accounted for
    for path in segments(folder):
        with open_regular(path) as file:
            start = start_of(file)
        if start and run and start.run not in ("", run):
            yield Finding(path, "was written by another run", repair=lambda path=path: set_aside(path))  # type: ignore[misc]
            continue
        found = Scan()
        try:
            whole = scan_segment(path, spec, found) == path.stat().st_size
        except LogRefused as error:
            yield Finding(path, str(error))
            continue
        bad = _unreadable(path, found, spec)
        if not (start and whole) or found.damaged or bad:
            yield _damaged(path, found, bad, spec, run)
        first = start.first_key if start else _first_key(path)
        if end is not None and first > end:
            yield _gap(folder, end, first, spec, run)
        last = found.entries[-1].header.key + 1 if found.entries else first
        end = max(end or 0, last, found.purged_to)
    if state and end is not None and state.next_chunk > end:
        yield _gap(folder, end, state.next_chunk, spec, run)


def _unreadable(path: Path, found: Scan, spec: ExperienceSpec) -> set[int]:
    """The keys of chunks whose content is damaged."""
    bad = set()
    with open_regular(path) as file:
        for entry in found.entries:
            try:
                read_chunk(file, entry, spec)
            except CorruptChunk:
                bad.add(entry.header.key)
    return bad


def _damaged(path: Path, found: Scan, bad: set[int], spec: ExperienceSpec, run: str) -> Finding:
    def repair() -> None:
        kept = [entry for entry in found.entries if entry.header.key not in bad]
        content = rewritten(path, found, kept, spec, run) if found.entries else b""
        keep_aside(path)
        if kept:
            with replacing(path) as file:
                file.write(content)
        else:
            path.unlink()

    chunks = f"{len(bad):,} chunks" if bad else "the chunks that the damaged places held, if any"
    places = found.damaged + found.torn + len(bad)
    return Finding(path, f"{max(places, 1):,} places in it cannot be read", chunks, repair)


def _gap(folder: Path, first: int, end: int, spec: ExperienceSpec, run: str) -> Finding:
    """Chunks that no segment has. The repair notes that they are known to be absent, so that they are not missed again."""
    path = folder / f"{first:016d}.segment"

    def repair() -> None:
        starts = [SegmentStart(spec.digest, key, {}, run) for key in (first, end)]
        with replacing(path) as file:
            file.write(b"".join(map(pack_record, starts)))

    return Finding(path, "is lost, or ends too early", f"{end - first:,} chunks, {first:,} to {end - 1:,}", repair)


def _first_key(path: Path) -> int:
    return int(path.stem) if path.stem.isdecimal() and len(path.stem) <= 16 else 0
