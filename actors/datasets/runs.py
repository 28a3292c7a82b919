"""The experience that a run has kept: replay's segment log as episodes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from actors.datasets.base import DatasetError, Episode, Space
from actors.envs.foreign.actions import plain_actions
from actors.envs.spaces import read_spaces
from actors.envs.spec import leaves, unflatten_leaf
from actors.errors import EnvError
from replay.log.files import open_regular
from replay.log.segments import LoggedChunk, LogRefused, Scan, read_chunk, scan_segment, segments
from replay.log.shard_folders import log_folders
from transport.compression import CorruptChunk
from transport.experience import Chunk, Columns, SpecError, Start, bounded, read_spec
from transport.files.documents import Damaged, read_bytes
from transport.run_dir import RunDir

COLUMNS = ("action", "reward", "terminated", "truncated", "valid", "episode_step", "policy_version")


class Evicted(DatasetError):
    """Replay has deleted an episode since it was found."""


class LoggedEpisode(NamedTuple):
    """An episode of T steps as replay stores it. Where neither `terminated` nor `truncated`, the log ends before it does."""

    stream: tuple[str, int, int]  # the actor, its incarnation, the environment's index
    chunks: tuple[LoggedChunk, ...]  # which hold its rows
    item: int  # the first row's, in the first of them
    age: float  # the share of the log's items that are no younger than it
    start: Start | None  # the seed that it began with, if it did
    follows: bool  # directly after the episode before it of its stream, which is whole
    rows: Columns  # [T, …] its steps
    last: Columns  # [1, …] the row that holds its last observation; if `terminated`, that has not been kept
    terminated: bool
    truncated: bool

    @property
    def total(self) -> float:
        return float(np.sum(self.rows["reward"], dtype=np.float64))


class _Piece(NamedTuple):
    """A chunk's own rows, and the one after them, also the first of the next chunk. `gap`: chunks before it are missing."""

    entry: LoggedChunk
    age: float
    gap: bool
    rows: Columns
    starts: Sequence[Start]
    item: int = 0  # of its first row


class RunSource:
    """The steps that replay keeps, in the order of each environment. An episode whose beginning damage or eviction has cut off is
    left out; one without its end counts as truncated."""

    def __init__(self, name: str, human: bool = False) -> None:
        """`human`: only the human steps, which have a log of their own. Raises DatasetError."""
        path = Path(name)
        run = RunDir(path if path.is_dir() else Path("runs") / name)
        if not run.spec.is_file():
            raise DatasetError(f"there is no run {name}, and no file or folder with a data set")
        try:
            self.spec = read_spec(read_bytes(run.spec))
            self.spaces: tuple[Space, Space] | None = read_spaces(read_bytes(run.spaces))
        except (SpecError, EnvError, Damaged, OSError) as error:
            raise DatasetError(f"{run.path}: {error}") from error
        self.about = f"human steps of run {run.name}" if human else f"run {run.name}"
        try:
            self.folders = log_folders(run.human_steps if human else run.segments)
        except LogRefused as error:
            raise DatasetError(str(error)) from error
        if not any(segments(folder) for folder in self.folders):
            if human:
                raise DatasetError(f"run {run.name} has no human steps: nobody has taken over an actor")
            kept = "rollouts are not kept" if self.spec.unit == "rollouts" else "it has just begun, or is one process (--serial)"
            raise DatasetError(f"run {run.name} has kept no experience: {kept}")

    def episodes(self) -> Iterator[Episode]:
        for found in self.logged():
            yield self.plain(found.rows, found.last, found.terminated)

    def logged(self) -> Iterator[LoggedEpisode]:
        """One stream after the other. Raises DatasetError."""
        scans = [self.scan(folder) for folder in self.folders]
        self.items = sum(entry.header.length for scan in scans for entry in scan.entries)
        for scan in scans:
            ages = dict(zip(scan.entries, _shares([entry.header.length for entry in scan.entries]), strict=True))
            gaps = _gaps(scan.entries)
            for stream, chunks in groupby(sorted(scan.entries, key=stream_of), stream_of):
                found = [(entry, ages[entry], gaps[entry]) for entry in chunks]
                yield from _episodes(stream, self.pieces(found))

    def again(self, episode: LoggedEpisode) -> LoggedEpisode:
        """The episode with its rows, which a caller of `logged` may have dropped. Raises Evicted."""
        pieces = self.pieces([(entry, episode.age, 0) for entry in episode.chunks])
        for found in _episodes(episode.stream, pieces):
            if (found.chunks[0], found.item) == (episode.chunks[0], episode.item):
                return found._replace(start=episode.start, follows=episode.follows)
        raise Evicted(f"{self.about}: replay has evicted the episode meanwhile")

    def scan(self, folder: Path) -> Scan:
        found = Scan()
        for path in segments(folder):
            try:
                scan_segment(path, self.spec, found)
            except FileNotFoundError:  # evicted meanwhile: the run is up
                continue
            except (LogRefused, OSError) as error:
                raise DatasetError(str(error)) from error
        return found

    def pieces(self, chunks: Sequence[tuple[LoggedChunk, float, int]]) -> Iterator[_Piece | None]:
        """The rows of each chunk, given with its age and the number of chunks that are missing before it; None where one cannot
        be read."""
        before = None
        for entry, age, missing in chunks:
            try:
                with open_regular(entry.path) as file:
                    chunk = read_chunk(file, entry, self.spec)
            except (CorruptChunk, OSError):
                yield None
                continue
            yield _Piece(entry, age, before not in (None, missing), self._rows(chunk), chunk.starts)
            before = missing

    def _rows(self, chunk: Chunk) -> Columns:
        names = (*COLUMNS, *(field.name for field in self.spec.fields))
        first = self.spec.history
        return {name: chunk.columns[name][first : first + chunk.length + 1] for name in names}

    def plain(self, rows: Columns, last: Columns, terminated: bool) -> Episode:
        """`rows` of an episode's steps, and the one after them."""
        assert self.spaces is not None
        observation, action = self.spaces
        parts = {}
        for name, space, _ in leaves(observation):
            values = np.concatenate([rows[name], last[name]])
            parts[name] = unflatten_leaf(space, self.spec.field(name), values)
        actions = plain_actions(action, bounded(self.spec, rows["action"]))
        return Episode(parts, actions, rows["reward"].astype(np.float32), terminated)


def stream_of(entry: LoggedChunk) -> tuple[str, int, int]:
    return entry.header.writer, entry.header.incarnation, entry.header.stream


def _sent(entry: LoggedChunk) -> tuple[str, int, int]:
    return entry.header.writer, entry.header.incarnation, entry.header.sequence


def _shares(lengths: Sequence[int]) -> list[float]:
    total = sum(lengths)
    return [count / total for count in accumulate(lengths)]


def _gaps(entries: Sequence[LoggedChunk]) -> dict[LoggedChunk, int]:
    """How many chunks of its actor are missing before each chunk. They may be of any of the actor's streams."""
    missing = {}
    for _, sent in groupby(sorted(entries, key=_sent), lambda entry: _sent(entry)[:2]):
        for place, entry in enumerate(sent):
            missing[entry] = entry.header.sequence - place
    return missing


def _episodes(stream: tuple[str, int, int], pieces: Iterator[_Piece | None]) -> Iterator[LoggedEpisode]:
    """Splits the rows of one environment at the ends of its episodes."""
    held: list[_Piece] = []  # of an episode that goes on
    whole = False  # the episode before is, and no chunk is missing since
    after: _Piece | None = None  # the row after the last chunk, which has the last observation of a stream that has ended
    for piece in pieces:
        if piece is None:
            held, whole, after = [], False, None
            continue
        whole &= not piece.gap
        own, after = _without_last(piece)
        whole = yield from _ended(stream, own, held, whole)
    if after is not None:
        whole = yield from _ended(stream, after, held, whole)
    if held and (found := _finish(stream, held, whole)):
        yield found


def _without_last(piece: _Piece) -> tuple[_Piece, _Piece]:
    """A chunk's own rows, and the one after them."""
    own = {name: values[:-1] for name, values in piece.rows.items()}
    after = {name: values[-1:] for name, values in piece.rows.items()}
    return piece._replace(rows=own), piece._replace(rows=after, starts=(), item=len(own["reward"]))


def _ended(stream: tuple[str, int, int], piece: _Piece, held: list[_Piece], whole: bool) -> Generator[LoggedEpisode, None, bool]:
    """The episodes that end before or in these rows; what follows is `held`. Returns whether the last one is whole."""
    for part, begins in _split(piece):
        if begins and held:
            found = _finish(stream, held, whole)
            if found:
                yield found
            whole = bool(found and (found.terminated or found.truncated))
            held.clear()
        if begins or held:
            held.append(part)
    return whole


def _split(piece: _Piece) -> Iterator[tuple[_Piece, bool]]:
    """The rows of each episode, and whether it begins with them."""
    rows = piece.rows
    starts = np.flatnonzero((rows["episode_step"] == 0) & (rows["valid"] != 0)).tolist()
    for start, stop in zip([0, *starts], [*starts, len(rows["reward"])], strict=True):
        if stop > start:
            own = {name: values[start:stop] for name, values in rows.items()}
            yield piece._replace(rows=own, item=piece.item + start), start in starts


def _finish(stream: tuple[str, int, int], held: list[_Piece], follows: bool) -> LoggedEpisode | None:
    """The episode of these rows, if they follow each other."""
    rows = {name: np.concatenate([piece.rows[name] for piece in held]) for name in held[0].rows}
    acted = rows["valid"] != 0
    steps, count = rows["episode_step"], int(acted.sum())
    if count == 0 or not acted[:count].all() or (steps[:count] != np.arange(count)).any():
        return None
    terminated = bool(rows["terminated"][count - 1])
    if not terminated and count == len(steps):  # its last observation has not been kept
        count -= 1
    if not terminated and count < len(steps) and steps[count] != count:  # of another episode, where rows were lost
        count -= 1
    if not count:
        return None
    last, first = count - 1 if terminated else count, held[0]
    return LoggedEpisode(
        stream,
        tuple(dict.fromkeys(piece.entry for piece in held)),
        first.item,
        held[-1].age,
        next((start for start in first.starts if start.item == first.item), None),
        follows,
        {name: values[:count] for name, values in rows.items()},
        {name: values[last : last + 1] for name, values in rows.items()},
        terminated,
        bool(rows["truncated"][count - 1]),
    )
