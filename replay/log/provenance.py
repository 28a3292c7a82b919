"""Which actor an item comes from, and how to remove what one actor sent: by a run's segment log."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from replay.log.segments import Entry, Scan, pack_record, read_chunk, scan_segment, segments, start_of
from transport.compression import CorruptChunk
from transport.experience import ExperienceSpec
from transport.run_dir import replacing


class NotThere(ValueError):
    """What was asked for is not in the log: the text says why in one line."""


class Origin(NamedTuple):
    """Where one item comes from."""

    key: int
    actor: str
    incarnation: int
    sequence: int  # of its chunk, among those of this incarnation of the actor
    stream: int  # environment within the actor
    offset: int  # within its chunk
    policy_version: int  # of the weights that acted
    segment: str


def trace(folder: Path, spec: ExperienceSpec, key: int) -> Origin:
    """The origin of the item that batches name by `key`. A run that is up may be asked. Raises NotThere, LogRefused, OSError."""
    chunk_key, offset = divmod(key, spec.chunk_length)
    holding = next((path for path in reversed(segments(folder)) if path.stem.isdecimal() and int(path.stem) <= chunk_key), None)
    entries = _entries(holding, spec) if holding else []
    entry = next((entry for entry in entries if entry.header.key == chunk_key), None)
    if entry is None or offset >= entry.header.length:
        raise NotThere(f"item {key} is not in the log: it has been evicted, was never logged, or is yet to come")
    version = _policy_version(entry, spec, offset)
    header = entry.header
    return Origin(key, header.writer, header.incarnation, header.sequence, header.stream, offset, version, entry.path.name)


def _policy_version(entry: Entry, spec: ExperienceSpec, offset: int) -> int:
    try:
        with open(entry.path, "rb") as file:
            return int(read_chunk(file, entry, spec).columns["policy_version"][spec.history + offset])
    except CorruptChunk as error:
        raise NotThere(f"the chunk of that item, {entry.header.key} of {entry.header.writer}, is damaged ({error})") from error


def purge(folder: Path, spec: ExperienceSpec, actor: str) -> tuple[int, int]:
    """Takes all chunks of an actor out of the log of a run that is not up; gives (chunks, rows) and leaves all others, with
    their keys, as they are. Each segment is at all times either the old one or the new one. Raises LogRefused, OSError."""
    chunks = rows = 0
    for path in segments(folder):
        entries = _entries(path, spec)
        gone = [entry.header for entry in entries if entry.header.writer == actor]
        if not gone:
            continue
        with replacing(path) as purged:
            purged.write(_without(path, entries, actor))
        chunks += len(gone)
        rows += sum(header.length for header in gone)
    return chunks, rows


def _without(path: Path, entries: list[Entry], actor: str) -> bytes:
    """A segment without an actor's chunks; what it says of writers stays, so that nobody else is taken twice."""
    with open(path, "rb") as file:
        start = start_of(file)
        records = [pack_record(start)] if start else []
        for entry in entries:
            if entry.header.writer != actor:
                file.seek(entry.offset)
                records.append(pack_record(entry.header, [file.read(sum(entry.header.sizes))]))
    return b"".join(records)


def actors(folder: Path, spec: ExperienceSpec) -> dict[str, int]:
    """Chunks in the log by actor. Raises LogRefused, OSError."""
    found: dict[str, int] = {}
    for path in segments(folder):
        for entry in _entries(path, spec):
            found[entry.header.writer] = found.get(entry.header.writer, 0) + 1
    return found


def _entries(path: Path, spec: ExperienceSpec) -> list[Entry]:
    scanned = Scan()
    scan_segment(path, spec, scanned)
    return scanned.entries
