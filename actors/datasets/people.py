"""What people have done who took over actors of a run, as episodes: each time from where they took over."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, groupby

import numpy as np

from actors.datasets.base import Episode
from actors.datasets.runs import RunSource, stream_of
from transport.experience import PERSON, Columns


class PeopleSource(RunSource):
    """The steps that replay keeps beyond its table. A part of an episode counts as one, truncated where the person has handed
    back."""

    def __init__(self, name: str) -> None:
        super().__init__(name, people=True)

    def episodes(self) -> Iterator[Episode]:
        for scan in [self.scan(folder) for folder in self.folders]:
            for _, chunks in groupby(sorted(scan.entries, key=stream_of), stream_of):
                pieces = self.pieces([(entry, 1.0, 0) for entry in chunks])
                for rows, last, terminated in _parts(piece.rows if piece else None for piece in pieces):
                    yield self.plain(rows, last, terminated)


def _parts(pieces: Iterator[Columns | None]) -> Iterator[tuple[Columns, Columns, bool]]:
    """The parts that people have steered of one environment: rows, the row after them, and whether they ended by termination.
    `pieces`: the rows of each chunk and the one after them, also the first of a chunk that follows it."""
    held: list[Columns] = []  # of chunks that follow each other
    for rows in chain(pieces, [None]):
        if held and (rows is None or any((held[-1][name][-1] != rows[name][0]).any() for name in rows)):
            yield from _unbroken({name: np.concatenate([piece[name] for piece in held]) for name in held[0]})
            held = []
        if rows is not None:
            held[-1:] = [{name: values[:-1] for name, values in one.items()} for one in held[-1:]]
            held.append(rows)


def _unbroken(rows: Columns) -> Iterator[tuple[Columns, Columns, bool]]:
    """The parts in rows that follow each other. A last step without the row after it is left out."""
    mine = (rows["policy_version"] == PERSON) & (rows["valid"] != 0)
    follows = np.append(np.diff(rows["episode_step"]) == 1, False)  # [N]: the next row is of the same episode
    joined = mine & follows & np.append(mine[1:], False)
    for start in np.flatnonzero(mine & ~np.append(False, joined[:-1])).tolist():
        stop = start + int(np.argmin(joined[start:])) + 1
        terminated = bool(rows["terminated"][stop - 1])
        last = stop if follows[stop - 1] else stop - 1
        if not terminated:
            stop = last
        if stop > start:
            own, after = slice(start, stop), slice(last, last + 1)
            yield {name: one[own] for name, one in rows.items()}, {name: one[after] for name, one in rows.items()}, terminated
