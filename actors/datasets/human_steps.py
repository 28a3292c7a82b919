"""Reads the human steps of a run, those of persons who took over an actor, as episodes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, groupby

import numpy as np

from actors.datasets.base import Episode
from actors.datasets.runs import RunSource, stream_of
from transport.experience import PERSON, Columns


class HumanStepsSource(RunSource):
    """The human steps that replay keeps beside its table. Each part of an episode that a person has steered is an episode here;
    it is truncated where the person has handed back."""

    def __init__(self, name: str) -> None:
        super().__init__(name, human=True)

    def episodes(self) -> Iterator[Episode]:
        for scan in [self.scan(folder) for folder in self.folders]:
            for _, chunks in groupby(sorted(scan.entries, key=stream_of), stream_of):
                pieces = self.pieces([(entry, 1.0, 0) for entry in chunks])
                for rows, last, terminated in _parts(piece.rows if piece else None for piece in pieces):
                    yield self.plain(rows, last, terminated)


def _parts(pieces: Iterator[Columns | None]) -> Iterator[tuple[Columns, Columns, bool]]:
    """The parts of one environment's stream with human steps: rows, the row after them, and whether they ended by termination.
    `pieces`: the rows of each chunk and the row after them, which is also the first row of the next chunk."""
    held: list[Columns] = []  # of chunks that follow each other
    for rows in chain(pieces, [None]):
        if held and (rows is None or any((held[-1][name][-1] != rows[name][0]).any() for name in rows)):
            yield from _unbroken({name: np.concatenate([piece[name] for piece in held]) for name in held[0]})
            held = []
        if rows is not None:
            held[-1:] = [{name: values[:-1] for name, values in one.items()} for one in held[-1:]]
            held.append(rows)


def _unbroken(rows: Columns) -> Iterator[tuple[Columns, Columns, bool]]:
    """The parts with human steps in consecutive rows. A last step without a row after it is left out."""
    human = (rows["policy_version"] == PERSON) & (rows["valid"] != 0)
    follows = np.append(np.diff(rows["episode_step"]) == 1, False)  # [N]: the next row is of the same episode
    joined = human & follows & np.append(human[1:], False)
    for start in np.flatnonzero(human & ~np.append(False, joined[:-1])).tolist():
        stop = start + int(np.argmin(joined[start:])) + 1
        terminated = bool(rows["terminated"][stop - 1])
        last = stop if follows[stop - 1] else stop - 1
        if not terminated:
            stop = last
        if stop > start:
            own, after = slice(start, stop), slice(last, last + 1)
            yield {name: one[own] for name, one in rows.items()}, {name: one[after] for name, one in rows.items()}, terminated
