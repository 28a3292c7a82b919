"""Gives a fork the experience of the run that it begins from: segments are hard-linked, so they take no space of their own.

The run may be up meanwhile. A segment to which it may still add is copied, as far as it is complete, and so is one of which the
fork takes only the beginning: the runs have no file in common that either of them changes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from replay.log.files import is_regular, open_regular
from replay.log.journal import ID_FILE, STATE_FILE
from replay.log.segments import Scan, scan_segment, segments
from replay.log.shard_folders import note, shard_folders, stored_shards
from replay.log.state import DamagedState, read_state, write_state
from replay.table.base import SelectorState
from replay.table.layout import leaves_per_chunk
from replay.table.ring import RingState
from transport.experience import ExperienceSpec
from transport.files.writing import link_or_copy, replacing
from transport.text import reported


class SharedSegments(NamedTuple):
    """The experience that a fork begins with; `steps` counts those evicted before, too. Zeros where there is none."""

    steps: int = 0
    rows: int = 0  # in the log
    shared_bytes: int = 0
    copied_bytes: int = 0


@dataclass
class _Log:
    """The log of one shard in the fork's folder."""

    folder: Path
    found: Scan
    ends: dict[Path, int]  # of each segment, behind its last complete record
    linked: set[Path]
    state: RingState | None

    @property
    def steps(self) -> int:
        """Those inserted until the end of the log. Without a saved state, evicted chunks are taken to be as long as these."""
        held = sum(entry.header.length for entry in self.found.entries)
        if self.state is None:
            first = self.found.entries[0].header.key if self.found.entries else 0
            return held + first * held // max(len(self.found.entries), 1)
        newer = (one.header.length for one in self.found.entries if one.header.key >= self.state.next_chunk)
        return self.state.inserted_items + sum(newer)


def share_segments(
    base: Path, target: Path, spec: ExperienceSpec, up: bool, steps: float | None, say: Callable[[str], None]
) -> SharedSegments:
    """Links the logs in the folder `base`, all or what was inserted in the first `steps` of the run, into the folder `target`.
    `up`: whether the run was up before the call; one that starts later begins a new segment.

    `say` gets a line every few seconds. Raises LogRefused, OSError.
    """
    shards = stored_shards(base)
    if shards is None:
        return SharedSegments()
    if shards > 1:
        note(target, shards)
    pairs = zip(shard_folders(base, shards), shard_folders(target, shards), strict=True)
    logs = [_link(folder, own, spec, up, say) for folder, own in pairs]
    total = sum(log.steps for log in logs)
    for log in logs:
        if steps is not None:
            _cut(log, int(steps * log.steps / max(total, 1)))
        _shorten(log)
    sizes = {path: (path.stat().st_size, path in log.linked) for log in logs for path in log.ends}
    shared, copied = (sum(size for size, linked in sizes.values() if linked == wanted) for wanted in (True, False))
    rows = sum(entry.header.length for log in logs for entry in log.found.entries)
    return SharedSegments(sum(log.steps for log in logs), rows, shared, copied)


def _link(folder: Path, target: Path, spec: ExperienceSpec, up: bool, say: Callable[[str], None]) -> _Log:
    """The state first: later segments then have every chunk that it counts. The newest segment first: one that is deleted
    meanwhile is older than all that have been linked, so none is missing in between. A run that is up may add to its newest
    segment, which is copied."""
    target.mkdir(parents=True, exist_ok=True)
    for name in (ID_FILE, STATE_FILE):
        if is_regular(folder / name):
            link_or_copy(folder / name, target / name)
    linked = set()
    for number, path in enumerate(reported(segments(folder)[::-1], "segments linked", say)):
        try:
            if up and number == 0:
                shutil.copyfile(path, target / path.name)
            elif link_or_copy(path, target / path.name):
                linked.add(target / path.name)
        except FileNotFoundError:
            break
    found, ends = Scan(), dict[Path, int]()
    for path in segments(target):
        ends[path] = scan_segment(path, spec, found)
    try:
        state = read_state(target / STATE_FILE, leaves_per_chunk(spec))
    except DamagedState:  # a resume says so, and begins with the initial priorities
        state = None
    return _Log(target, found, ends, linked, state)


def _cut(log: _Log, steps: int) -> None:
    """Leaves what was inserted in the first `steps` steps of this shard. Priorities and the selector's state are those of now."""
    entries, state = log.found.entries, log.state
    lengths = np.array([entry.header.length for entry in entries], np.int64)
    before = log.steps - np.cumsum(lengths[::-1])[::-1]  # steps inserted before each chunk
    kept = int((before < steps).sum())
    if kept == len(entries):
        return
    log.found.entries = entries[:kept]
    last = entries[kept - 1] if kept else None
    for path in [path for path in log.ends if last is None or path > last.path]:
        path.unlink()
        del log.ends[path]
    if last is not None:
        log.ends[last.path] = last.offset + sum(last.header.sizes)
    if state is not None:
        log.state = _state_at(state, last.header.key + 1 if last else 0, steps)
        write_state(log.folder / STATE_FILE, log.state)


def _state_at(state: RingState, end: int, steps: int) -> RingState:
    """The state for the chunks before the key `end`, of `steps` steps. What the server has counted begins anew."""
    here = state.chunk_keys < end
    keys, values = state.chunk_keys[here], state.selector.values.reshape(len(here), -1)[here].reshape(-1)
    if not len(keys):
        keys, values = np.array([-1], np.int64), np.zeros(1)
    sampled = int(state.sampled_items * min(steps / max(state.inserted_items, 1), 1.0))
    return RingState(end, keys, steps, sampled, SelectorState(values, state.selector.numbers))


def _shorten(log: _Log) -> None:
    """Replaces files by copies where the fork has less than they do."""
    for path, end in log.ends.items():
        if end < path.stat().st_size:
            log.linked.discard(path)
            with replacing(path) as file, open_regular(path) as source:  # Windows replaces no open file
                file.write(source.read(end))
