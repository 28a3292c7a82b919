"""The experience that a run has kept: replay's segment log as episodes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np

from actors.datasets.base import DatasetError, Episode
from actors.envs.foreign.actions import plain_actions
from actors.envs.spaces import read_spaces
from actors.envs.spec import leaves, unflatten_leaf
from actors.errors import EnvError
from replay.log.files import open_regular
from replay.log.segments import LoggedChunk, LogRefused, Scan, read_chunk, scan_segment, segments
from replay.log.shard_folders import log_folders
from transport.compression import CorruptChunk
from transport.experience import Columns, SpecError, bounded, read_spec
from transport.files.documents import Damaged, read_bytes
from transport.run_dir import RunDir

COLUMNS = ("action", "reward", "terminated", "truncated", "valid", "episode_step")


class RunSource:
    """The steps that replay keeps, in the order of each environment. An episode whose beginning damage or eviction has cut off is
    left out; one without its end counts as truncated."""

    def __init__(self, name: str) -> None:
        path = Path(name)
        run = RunDir(path if path.is_dir() else Path("runs") / name)
        if not run.spec.is_file():
            raise DatasetError(f"there is no run {name}, and no file or folder with a data set")
        try:
            self.spec = read_spec(read_bytes(run.spec))
            self.spaces = read_spaces(read_bytes(run.spaces))
        except (SpecError, EnvError, Damaged, OSError) as error:
            raise DatasetError(f"{run.path}: {error}") from error
        self.about = f"run {run.name}"
        try:
            self._folders = log_folders(run.segments)
        except LogRefused as error:
            raise DatasetError(str(error)) from error
        if not any(segments(folder) for folder in self._folders):
            kept = "rollouts are not kept" if self.spec.unit == "rollouts" else "it has no segments"
            raise DatasetError(f"run {run.name} has kept no experience: {kept}")

    def episodes(self) -> Iterator[Episode]:
        for folder in self._folders:
            for chunks in self._streams(folder):
                yield from _episodes(self._rows(chunks), self)

    def _streams(self, folder: Path) -> Iterator[list[LoggedChunk]]:
        """The chunks of each environment of each actor, in order."""
        found = Scan()
        try:
            for path in segments(folder):
                scan_segment(path, self.spec, found)
        except (LogRefused, OSError) as error:
            raise DatasetError(str(error)) from error

        def stream(entry: LoggedChunk) -> tuple[str, int, int]:
            return entry.header.writer, entry.header.incarnation, entry.header.stream

        for _, chunks in groupby(sorted(found.entries, key=stream), stream):
            yield list(chunks)

    def _rows(self, chunks: list[LoggedChunk]) -> Iterator[Columns | None]:
        """Each chunk's own rows and the one after them, also the first of the next chunk; None where a chunk is missing."""
        for entry in chunks:
            try:
                with open_regular(entry.path) as file:
                    chunk = read_chunk(file, entry, self.spec)
            except (CorruptChunk, OSError):
                yield None
                continue
            names = (*COLUMNS, *(field.name for field in self.spec.fields))
            first = self.spec.history
            yield {name: chunk.columns[name][first : first + chunk.length + 1] for name in names}

    def plain(self, rows: Columns, last: Columns, terminated: bool) -> Episode:
        """`rows` of one episode's steps, and the one after them."""
        assert self.spaces is not None
        observation, action = self.spaces
        parts = {}
        for name, space, _ in leaves(observation):
            values = np.concatenate([rows[name], last[name]])
            parts[name] = unflatten_leaf(space, self.spec.field(name), values)
        actions = plain_actions(action, bounded(self.spec, rows["action"]))
        return Episode(parts, actions, rows["reward"].astype(np.float32), terminated)


def _episodes(pieces: Iterator[Columns | None], source: RunSource) -> Iterator[Episode]:
    """Splits the rows of one environment at the ends of its episodes. The row after the last chunk has its last observation."""
    held: list[Columns] = []  # rows of an episode that goes on
    after: Columns | None = None
    for rows in pieces:
        if rows is None:
            held.clear()
            after = None
            continue
        after = {name: values[-1:] for name, values in rows.items()}
        yield from _split({name: values[:-1] for name, values in rows.items()}, held, source)
    if after is not None:
        yield from _split(after, held, source)
    if held:
        yield from _finish(held, source)


def _split(rows: Columns, held: list[Columns], source: RunSource) -> Iterator[Episode]:
    """The episodes that end before or in these rows; what follows is `held`."""
    starts = np.flatnonzero((rows["episode_step"] == 0) & (rows["valid"] != 0)).tolist()
    for start, stop in zip([0, *starts], [*starts, len(rows["reward"])], strict=True):
        if start in starts and held:
            yield from _finish(held, source)
            held.clear()
        if stop > start and (start in starts or held):
            held.append({name: values[start:stop] for name, values in rows.items()})


def _finish(held: list[Columns], source: RunSource) -> Iterator[Episode]:
    """The episode of these rows, if they follow each other."""
    rows = {name: np.concatenate([piece[name] for piece in held]) for name in held[0]}
    acted = rows["valid"] != 0
    steps, count = rows["episode_step"], int(acted.sum())
    if count == 0 or not acted[:count].all() or (steps[:count] != np.arange(count)).any():
        return
    terminated = bool(rows["terminated"][count - 1])
    if not terminated and count == len(steps):  # its last observation has not been kept
        count -= 1
    if not terminated and count < len(steps) and steps[count] != count:  # of another episode, where rows were lost
        count -= 1
    if count:
        last = count - 1 if terminated else count
        yield source.plain(
            {name: values[:count] for name, values in rows.items()},
            {name: values[last : last + 1] for name, values in rows.items()},
            terminated,
        )
