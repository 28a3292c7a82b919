"""Was anything lost, doubled, torn or mixed? What actors say that they did, against what the segment log holds at the end.

In the manner of Jepsen's set checker (jepsen-io/jepsen, checker.clj): lost = acknowledged - stored, unexpected = stored -
attempted, recovered = stored - acknowledged. Beyond it: what is stored twice, what is not what the simulator showed, and streams
that two lives of actors have a part in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from replay.config import ReplayConfig
from replay.log.segments import LoggedChunk, Writers, _read_header, read_chunk, scan, segments
from replay.table.ring import Ring
from tests.chaos.history import Life, pack_id, read_histories, unpack_id
from tests.harness.checker import Checker
from tests.replay.examples import every_item
from transport.compression import CorruptChunk
from transport.experience import ExperienceSpec

CHUNKS_AT_ONCE = 64
EXAMPLES = 3


@dataclass
class Stored:
    """What a log holds: items by place, all lists as long as each other."""

    ids: list[int] = field(default_factory=list)  # the step that an item is, as pack_id names it
    chunks: list[int] = field(default_factory=list)  # the key of its chunk
    lives: dict[int, tuple[str, int]] = field(default_factory=dict)  # chunk key -> (actor, incarnation)
    sequences: dict[int, int] = field(default_factory=dict)  # chunk key -> sequence
    torn: list[str] = field(default_factory=list)  # what is wrong with items and chunks that are not what they should be
    evicted: Writers = field(default_factory=dict)  # actor -> (incarnation, first sequence that was not evicted)


def read_evicted(folder: Path) -> Writers:
    """Of a log: actor -> (incarnation, the first sequence that was not evicted), as its oldest segment says."""
    if files := segments(folder):
        with open(files[0], "rb") as file:
            if (record := _read_header(file, 0)) is not None:
                return dict(getattr(record[0], "writers", {}))
    return {}


def read_log(folder: Path, spec: ExperienceSpec) -> Stored:
    """Everything in a run's segment log; replay must not be running. Every item is checked as fleet.Checker does."""
    stored = Stored(evicted=read_evicted(folder))
    entries = scan(folder, spec).entries
    for first in range(0, len(entries), CHUNKS_AT_ONCE):
        _read_chunks(entries[first : first + CHUNKS_AT_ONCE], spec, stored)
    return stored


def _read_chunks(entries: Sequence[LoggedChunk], spec: ExperienceSpec, stored: Stored) -> None:
    """By way of a table: what it would hand out."""
    span = entries[-1].header.key - entries[0].header.key + 1
    table = Ring(spec, ReplayConfig(min_size=1, capacity=span * spec.chunk_length), seed=0)
    for entry in entries:
        header = entry.header
        try:
            with open(entry.path, "rb") as file:
                table.restore(header.key, read_chunk(file, entry, spec))
        except CorruptChunk as error:
            stored.torn.append(f"chunk {header.key}: {error}")
            continue
        stored.lives[header.key] = header.writer, header.incarnation
        stored.sequences[header.key] = header.sequence
    if not table.size:
        return
    batch, checker = every_item(table), Checker(spec, known_policy=False)
    for b in range(table.size):
        key = int(batch["key"][b])
        try:
            checker._item({name: array[b] for name, array in batch.items()})
        except AssertionError as error:
            stored.torn.append(f"item {key}: {str(error).splitlines()[0] if str(error) else 'not what the simulator showed'}")
            continue
        stored.ids.append(pack_id(*checker.keys[key][0]))
        stored.chunks.append(key // spec.chunk_length)


@dataclass(frozen=True)
class Verdict:
    """What became of every step. The sets are sorted arrays of names, as pack_id makes them."""

    attempted: np.ndarray
    acknowledged: np.ndarray  # but for what was evicted
    stored: np.ndarray
    evicted: int  # steps acknowledged whose chunks have rightly left the log
    lost: np.ndarray
    unexpected: np.ndarray
    recovered: np.ndarray
    doubled: np.ndarray
    torn: Sequence[str]
    mixed: Sequence[str]  # what two lives of actors have a part in
    lives: int

    @property
    def figures(self) -> dict[str, int]:
        """For `row.measured`."""
        return {name: len(getattr(self, name)) for name in ("lost", "unexpected", "doubled", "torn", "mixed")}

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong. What was recovered is fine: it was stored, and the word of it did not arrive."""
        return not any(self.figures.values())

    @property
    def text(self) -> str:
        """One line, with examples of what is wrong."""
        evicted = f", {self.evicted:,} evicted" if self.evicted else ""
        line = (
            f"{len(self.attempted):,} steps by {self.lives} incarnations, {len(self.acknowledged):,} acknowledged{evicted}, "
            f"{len(self.stored):,} stored ({len(self.recovered):,} recovered)"
        )
        for name in ("lost", "unexpected", "doubled"):
            wrong = getattr(self, name)[:EXAMPLES].tolist()
            line += "".join(f"; {name}: stream {a} episode {b} step {c}" for a, b, c in map(unpack_id, wrong))
        return (
            line
            + "".join(f"; torn: {what}" for what in self.torn[:EXAMPLES])
            + "".join(f"; mixed: {what}" for what in self.mixed[:EXAMPLES])
        )


def judge(lives: Sequence[Life], stored: Stored) -> Verdict:
    """Compares. Nothing may be stored that no life attempted; a life that recorded no step attempted what it handed over."""
    attempted = _names(np.array(life.steps, np.int64) if life.steps else _joined(life.inserts.values()) for life in lives)
    owed = [_acknowledged(life, _first_kept(life, lives, stored)) for life in lives]
    acknowledged = _names(kept for kept, _ in owed)
    ids = np.array(stored.ids, np.int64)
    held, times = np.unique(ids, return_counts=True)
    return Verdict(
        attempted=attempted,
        acknowledged=acknowledged,
        stored=held,
        evicted=sum(evicted for _, evicted in owed),
        lost=np.setdiff1d(acknowledged, held, assume_unique=True),
        unexpected=np.setdiff1d(held, attempted, assume_unique=True),
        recovered=np.setdiff1d(held, acknowledged, assume_unique=True),
        doubled=held[times > 1],
        torn=tuple(stored.torn),
        mixed=tuple(_mixed(lives, stored)),
        lives=len(lives),
    )


def check(folder: Path, spec: ExperienceSpec, histories: Path) -> Verdict:
    """Of a run's segment log in `folder` and what its actors wrote into `histories`. Replay must have ended."""
    return judge(read_histories(histories), read_log(folder, spec))


def _joined(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *arrays])


def _names(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.unique(_joined(arrays))


def _acknowledged(life: Life, first_kept: int) -> tuple[np.ndarray, int]:
    """The names of what was acknowledged and should be stored, and how much more was acknowledged and evicted."""
    done = {sequence: ids for sequence, ids in life.inserts.items() if sequence < life.acknowledged}
    kept = [ids for sequence, ids in done.items() if sequence >= first_kept]
    return _joined(kept), sum(map(len, done.values())) - sum(map(len, kept))


def _first_kept(life: Life, lives: Sequence[Life], stored: Stored) -> int:
    """The first sequence of a life that was not evicted: the oldest segment begins by saying what came before it."""
    incarnation, sequence = stored.evicted.get(life.name, (-1, 0))
    if incarnation == life.incarnation:
        return sequence
    known = next((other for other in lives if (other.name, other.incarnation) == (life.name, incarnation)), None)
    if known is None or life.began > known.began:
        return 0
    # A life that had ended before the oldest segment began, but for what waited in replay: that has the last sequences.
    left = [stored.sequences[key] for key, owner in stored.lives.items() if owner == (life.name, life.incarnation)]
    return min(left, default=life.acknowledged)


def _mixed(lives: Sequence[Life], stored: Stored) -> Iterable[str]:
    """Items stored as another life's than the one that handed them over, and streams of several lives."""
    inserted = {(life.name, life.incarnation): set(_joined(life.inserts.values()).tolist()) for life in lives}
    streams: dict[int, tuple[str, int]] = {}
    for packed, chunk in zip(stored.ids, stored.chunks, strict=True):
        owner = stored.lives[chunk]
        identity, episode, step = unpack_id(packed)
        if owner in inserted and packed not in inserted[owner]:
            yield f"stream {identity} episode {episode} step {step} is stored as one of {owner[0]}'s life {owner[1]}"
        if streams.setdefault(identity, owner) != owner:
            yield f"stream {identity} has steps of {streams[identity]} and of {owner}"
