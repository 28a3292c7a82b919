"""Redistributes the experience of a stopped run over another number of shards."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from replay.log.files import ASIDE, free_name, open_regular, set_aside
from replay.log.journal import ID_FILE, STATE_FILE, run_id
from replay.log.segment_log import Background, SegmentLog
from replay.log.segments import LoggedChunk, Scan, Writers, read_chunk, scan, segments
from replay.log.shard_folders import note, shard_folder, shard_folders, stored_shards
from replay.log.state import DamagedState, read_state, write_state
from replay.shards import Shard, shard_of
from replay.table.base import SelectorState
from replay.table.layout import leaves_per_chunk
from replay.table.ring import RingState
from transport.compression import CorruptChunk
from transport.experience import ExperienceSpec
from transport.files.writing import remove, replace, sync_folder
from transport.messages.replay import Insert

SEGMENT_CHUNKS = 256


class Resharded(NamedTuple):
    before: int  # shards
    chunks: tuple[int, ...]  # of each shard now; empty where there was nothing to do


@dataclass
class _Old:
    """A shard before the redistribution."""

    entries: list[LoggedChunk]  # oldest first
    writers: Writers
    faulty: set[Path]  # segments with places that cannot be read
    state: RingState | None
    place: dict[int, int]  # chunk key -> index in the arrays of the state


Chunks = list[tuple[_Old, LoggedChunk]]


def reshard(base: Path, spec: ExperienceSpec, shards: int, report: Callable[[str], None]) -> Resharded:
    """Writes the logs in the folder `base` anew for `shards` shards, then deletes the old ones once each chunk is in a new one.

    Every chunk goes to the shard of its actor under a new key, and keeps its priorities. If this is interrupted, the old logs
    are valid until all new ones are on the disk, and the new ones from then on. Raises LogRefused, OSError.
    """
    before = stored_shards(base)
    if before is None:
        return Resharded(shards, ())
    _remove_all_but(base, before)  # an interrupted attempt may have left them
    if before == shards:
        return Resharded(before, ())
    folders = shard_folders(base, before)
    for folder in folders:
        folder.mkdir(exist_ok=True)
    ids = [run_id(folder / ID_FILE, report) for folder in folders]  # all are known before any log is changed
    old = [_read(folder, spec, run, report) for folder, run in zip(folders, ids, strict=True)]
    note(base, before)  # a single shard has no such file, and without it the new logs would be as valid as the old ones
    parts = _divided(old, shards)
    counts = tuple(map(len, parts))
    records = _records(old, spec)
    try:
        for index, chunks in enumerate(parts):
            _write(base, Shard(index, shards), chunks, old, spec)
            if (state := _state(chunks, old, records, counts, index, leaves_per_chunk(spec))) is not None:
                write_state(shard_folder(base, Shard(index, shards)) / STATE_FILE, state)
        _check_carried(base, spec, old, shards)
    except OSError:
        _remove_all_but(base, before)  # or the disk would stay as full as it is now
        raise
    sync_folder(base)
    note(base, shards)
    for path in (path for each in old for path in sorted(each.faulty)):
        report(f"{path} has places that cannot be read: it is now {set_aside(path).name}")
    _remove_all_but(base, shards)
    return Resharded(before, counts)


def _read(folder: Path, spec: ExperienceSpec, run: str, report: Callable[[str], None]) -> _Old:
    found = scan(folder, spec, run, report)
    try:
        state = read_state(folder / STATE_FILE, leaves_per_chunk(spec))
    except DamagedState as error:
        report(f"{error}: its items start with their initial priorities")
        state = None
    keys = state.chunk_keys.tolist() if state else []
    return _Old(found.entries, found.writers, found.faulty, state, {key: place for place, key in enumerate(keys) if key >= 0})


def _divided(old: Sequence[_Old], shards: int) -> list[Chunks]:
    """The chunks of each new shard, oldest first. Chunks have no time, so the age of a chunk is its position in its old shard,
    from 0 to 1. Those of an actor keep their order."""
    aged = [
        (place / len(each.entries), number, entry) for number, each in enumerate(old) for place, entry in enumerate(each.entries)
    ]
    parts: list[Chunks] = [[] for _ in range(shards)]
    for _, number, entry in sorted(aged, key=lambda found: found[:2]):
        parts[shard_of(entry.header.writer, shards).index].append((old[number], entry))
    return parts


def _write(base: Path, shard: Shard, chunks: Chunks, old: Iterable[_Old], spec: ExperienceSpec) -> None:
    folder = shard_folder(base, shard)
    folder.mkdir(parents=True, exist_ok=True)
    known = {name: writer for each in old for name, writer in each.writers.items()}
    writers = {name: writer for name, writer in known.items() if shard_of(name, shard.count) == shard}
    background = Background()
    log = SegmentLog(folder, spec, SEGMENT_CHUNKS, Scan(writers=writers), background, run_id(folder / ID_FILE))
    for key, (_, entry) in enumerate(chunks):
        header = entry.header
        message = Insert(header.sequence, header.stream, header.length, header.crc32, starts=header.starts)
        log.append(key, header.writer, header.incarnation, message, _parts(entry))
    log.close()
    background.close()
    if log.unlogged:
        raise OSError(f"{folder} could not be written: check the space on the disk; the experience is as it was")


def _parts(entry: LoggedChunk) -> list[bytes]:
    with open_regular(entry.path) as file:
        file.seek(entry.offset)
        return [file.read(size) for size in entry.header.sizes]


def _check_carried(base: Path, spec: ExperienceSpec, old: Iterable[_Old], shards: int) -> None:
    """Raises OSError unless every chunk of the old logs is in the new ones."""
    lacking = {_origin(entry) for each in old for entry in each.entries}
    for folder in shard_folders(base, shards):
        lacking -= {_origin(entry) for entry in scan(folder, spec).entries}
    if lacking:
        raise OSError(f"{len(lacking):,} chunks are not in the new logs in {base}: the experience is as it was")


def _origin(entry: LoggedChunk) -> tuple[str, int, int, int]:
    header = entry.header
    return header.writer, header.incarnation, header.sequence, header.crc32


class _Records(NamedTuple):
    """The counters of all shards together."""

    inserted_items: int
    sampled_items: int
    counters: dict[str, float]


def _records(old: Iterable[_Old], spec: ExperienceSpec) -> _Records:
    inserted = sampled = 0
    counters: dict[str, float] = {}
    for each in old:
        unsaved = [entry for entry in each.entries if entry.header.key >= (each.state.next_chunk if each.state else 0)]
        inserted += sum(_items(entry, spec) for entry in unsaved)
        counters["inserted_chunks"] = counters.get("inserted_chunks", 0.0) + len(unsaved)
        if each.state:
            inserted, sampled = inserted + each.state.inserted_items, sampled + each.state.sampled_items
            for name, count in each.state.counters.items():
                counters[name] = counters.get(name, 0.0) + count
    return _Records(inserted, sampled, counters)


def _items(entry: LoggedChunk, spec: ExperienceSpec) -> int:
    try:
        with open_regular(entry.path) as file:
            valid = read_chunk(file, entry, spec).columns["valid"]
    except CorruptChunk:
        return 0
    return int(np.count_nonzero(valid[spec.history : spec.history + entry.header.length]))


def _state(
    chunks: Chunks, old: Sequence[_Old], records: _Records, counts: Sequence[int], index: int, leaves: int
) -> RingState | None:
    """The state of new shard `index`, with the priorities of those chunks that a saved state has; None where there are no chunks
    or no saved states.

    The counters of all shards are divided by their numbers of chunks, `counts`, so that the sums stay.
    """
    states = [each.state for each in old if each.state is not None]
    if not states or not chunks:
        return None
    keys = np.full(len(chunks), -1, np.int64)
    values = np.zeros((len(chunks), leaves))
    for key, (each, entry) in enumerate(chunks):
        if each.state is not None and (place := each.place.get(entry.header.key)) is not None:
            keys[key] = key
            saved = each.state.selector.values.reshape(len(each.state.chunk_keys), -1)[place]
            values[key, : len(saved)] = saved
    ends = list(accumulate(counts))

    def part(total: float) -> int:
        return int(total) * ends[index] // ends[-1] - int(total) * (ends[index] - counts[index]) // ends[-1]

    return RingState(
        next_chunk=len(chunks),
        chunk_keys=keys,
        inserted_items=part(records.inserted_items),
        sampled_items=part(records.sampled_items),
        selector=SelectorState(values.reshape(-1), max(states, key=lambda state: state.next_chunk).selector.numbers),
        counters={name: float(part(count)) for name, count in records.counters.items()},
    )


def _remove_all_but(base: Path, shards: int) -> None:
    """Deletes the logs of any other number of shards. That of one shard is beside the folders of several, and keeps what lies in
    those and was set aside."""
    for folder in base.glob("*-of-*"):
        if folder not in shard_folders(base, shards):
            for path in folder.glob(f"*{ASIDE}*"):
                replace(path, free_name(base / f"{folder.name}-{path.name}"))
            shutil.rmtree(folder, ignore_errors=True)
    if shards > 1:
        for path in (*segments(base), base / STATE_FILE):
            remove(path)
