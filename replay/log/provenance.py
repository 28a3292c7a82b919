"""Finds the origin of an item in a run's segment log, and removes the chunks of one actor from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from replay.log.files import open_regular
from replay.log.segments import LoggedChunk, Scan, SegmentStart, pack_record, read_chunk, scan_segment, segments, start_of
from replay.log.shard_folders import log_folders
from replay.shards import KEY_BITS
from replay.table.layout import leaves_per_chunk
from transport.compression import CorruptChunk
from transport.experience import ExperienceSpec
from transport.files.writing import replacing
from transport.text import reported

Say = Callable[[str], None]


def silent(line: str) -> None:
    """Says nothing."""


class NotThere(ValueError):
    """The item is not in the log; the text says why in one line."""


class Origin(NamedTuple):
    key: int
    actor: str
    incarnation: int
    sequence: int  # of its chunk
    stream: int  # index of the environment within the actor
    offset: int  # within its chunk
    policy_version: int  # of the weights that chose the action
    segment: str


def trace(base: Path, spec: ExperienceSpec, key: int) -> Origin:
    """The origin of the item with this key, from the logs of all shards; also while the run is up. Raises NotThere, LogRefused,
    OSError."""
    shard, own_key = divmod(key, 1 << KEY_BITS)
    folders = log_folders(base)
    if shard >= len(folders):
        raise NotThere(f"item {key} is of shard {shard}, and the run has {len(folders)}")
    folder = folders[shard]
    chunk_key, offset = divmod(own_key, leaves_per_chunk(spec))  # as the ring makes keys: a sequence is a whole chunk
    segment = next((path for path in reversed(segments(folder)) if path.stem.isdecimal() and int(path.stem) <= chunk_key), None)
    entries = _scanned(segment, spec).entries if segment else []
    entry = next((entry for entry in entries if entry.header.key == chunk_key), None)
    if entry is None or offset >= entry.header.length:
        raise NotThere(f"item {key} is not in the log: it was evicted, was never logged, or does not exist yet")
    version = _policy_version(entry, spec, offset)
    header = entry.header
    return Origin(
        key, header.writer, header.incarnation, header.sequence, header.stream, offset, version, str(entry.path.relative_to(base))
    )


def _policy_version(entry: LoggedChunk, spec: ExperienceSpec, offset: int) -> int:
    try:
        with open_regular(entry.path) as file:
            return int(read_chunk(file, entry, spec).columns["policy_version"][spec.history + offset])
    except CorruptChunk as error:
        raise NotThere(f"chunk {entry.header.key} of {entry.header.writer}, which has the item, is damaged ({error})") from error


def purge(base: Path, spec: ExperienceSpec, actor: str, say: Say = silent) -> tuple[int, int]:
    """Removes all chunks of an actor from the logs of a stopped run; returns (chunks, rows). Other chunks keep their keys.

    Each segment is replaced atomically. `say` gets a line every few seconds. Raises LogRefused, OSError.
    """
    chunks = rows = 0
    for path in reported(_all_segments(base), "segments without its chunks", say):
        found = _scanned(path, spec)
        removed = [entry.header for entry in found.entries if entry.header.writer == actor]
        if not removed:
            continue
        kept = [entry for entry in found.entries if entry.header.writer != actor]
        content = rewritten(path, found, kept, spec)
        with replacing(path) as file:
            file.write(content)
        chunks += len(removed)
        rows += sum(header.length for header in removed)
    return chunks, rows


def rewritten(path: Path, found: Scan, kept: Sequence[LoggedChunk], spec: ExperienceSpec, run: str = "") -> bytes:
    """A segment with those of its chunks that are kept. It keeps the sequences of all actors, so that no chunk is inserted twice
    later, and where it ended, so that a purge is not taken for a loss. `run`: the id for one that has lost it."""
    with open_regular(path) as file:
        start = start_of(file) or SegmentStart(spec.digest, found.entries[0].header.key, {}, run)
        records = [pack_record(start)]
        for entry in kept:
            file.seek(entry.offset)
            records.append(pack_record(entry.header, [file.read(sum(entry.header.sizes))]))
    end = max(found.entries[-1].header.key + 1, found.purged_to)
    records.append(pack_record(SegmentStart(spec.digest, end, found.writers, start.run)))
    return b"".join(records)


def actors(base: Path, spec: ExperienceSpec, say: Say = silent) -> dict[str, int]:
    """The number of chunks in the logs by actor. `say` gets a line every few seconds. Raises LogRefused, OSError."""
    found: dict[str, int] = {}
    for path in reported(_all_segments(base), "segments that were read", say):
        for entry in _scanned(path, spec).entries:
            found[entry.header.writer] = found.get(entry.header.writer, 0) + 1
    return found


def _all_segments(base: Path) -> list[Path]:
    return [path for folder in log_folders(base) for path in segments(folder)]


def _scanned(path: Path, spec: ExperienceSpec) -> Scan:
    scanned = Scan()
    scan_segment(path, spec, scanned)
    return scanned
