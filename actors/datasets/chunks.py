"""Episodes as the chunks of a run, in a segment as replay reads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from actors.chunker import Chunker
from actors.datasets.base import DatasetError, Source, Space, stored
from actors.hindsight import GoalReward, Hindsight
from learner.algorithms.columns import HINDSIGHT_GOAL, HINDSIGHT_REWARD
from replay.log.segments import ChunkHeader, SegmentStart, pack_record
from replay.table.inbox import RejectedChunk, check_chunk
from transport.compression import crc32, pack_chunk
from transport.experience import ACHIEVED_GOAL, DESIRED_GOAL, Chunk, Columns, ExperienceSpec

WRITER = "demonstrations"
VERSION = 0  # of the policy: none of the run's
OF_HINDSIGHT = (HINDSIGHT_GOAL, HINDSIGHT_REWARD)


class Totals(NamedTuple):
    episodes: int
    steps: int
    return_mean: float

    def __str__(self) -> str:
        return f"{self.episodes:,} episodes, {self.steps:,} steps, return {self.return_mean:,.1f}"


def write_segment(
    path: Path,
    source: Source,
    spec: ExperienceSpec,
    spaces: tuple[Space, Space],
    reward: GoalReward | None,
    progress: Callable[[int], None] = lambda steps: None,
) -> Totals:
    """Writes all episodes of a source. `reward`: relabels those of goal environments. Raises DatasetError, EnvError, OSError."""
    returns: list[float] = []
    steps = key = 0
    with path.open("wb") as file:
        file.write(pack_record(SegmentStart(spec.digest, 0, {})))
        writer = _Writer(spec, spaces, reward)
        for number, episode in enumerate(source.episodes()):
            try:
                key = writer.write(writer.chunks(*stored(episode, spec, spaces), episode.rewards, episode.terminated), file, key)
            except (DatasetError, RejectedChunk) as error:
                raise DatasetError(f"{source.about}, episode {number}: {error}") from error
            returns.append(episode.total)
            steps += len(episode.rewards)
            progress(steps)
        try:
            key = writer.write(writer.rest(), file, key)
        except RejectedChunk as error:
            raise DatasetError(f"{source.about}, at its end: {error}") from error
    if not key:
        raise DatasetError(f"{source.about} has no whole episode")
    return Totals(len(returns), steps, float(np.mean(returns)))


def _record(spec: ExperienceSpec, chunk: Chunk, key: int) -> bytes:
    parts = pack_chunk(spec, chunk)
    return pack_record(ChunkHeader(key, WRITER, 1, key, 0, chunk.length, crc32(parts), tuple(map(len, parts))), parts)


class _Writer:
    """One stream of all episodes."""

    def __init__(self, spec: ExperienceSpec, spaces: tuple[Space, Space], reward: GoalReward | None) -> None:
        self._spec, self._reward = spec, reward
        self._hindsight = Hindsight(spec, reward, seed=0) if spec.goals and reward else None
        for column in spec.extras:
            if column.default is None and column.name not in OF_HINDSIGHT:
                raise DatasetError(
                    f"the algorithm learns from its own policy's experience alone: it needs {column.name} of each step"
                )
        self._chunker = Chunker(spec, 1, math.inf, annotate=self._annotate)
        self._last: Columns = {}

    def chunks(self, observation: Columns, action: np.ndarray, reward: np.ndarray, terminated: bool) -> Iterator[Chunk]:
        """Of an episode's T steps, as far as they leave: observation [T + 1, *shape], action [T, …], reward [T]."""
        steps = len(reward)
        if self._reward is not None:
            achieved, desired = (self._spec.field(name).decode(observation[name]) for name in (ACHIEVED_GOAL, DESIRED_GOAL))
            reward = self._reward(achieved[1:], desired[:-1])
        rewards = np.asarray(reward, np.float32)
        never = np.zeros(1, bool)
        for step in range(steps):
            ends = np.array([step == steps - 1])
            now = {name: values[step : step + 1] for name, values in observation.items()}
            after = {name: values[step + 1 : step + 2] for name, values in observation.items()}
            flags = (ends, never) if terminated else (never, ends)
            yield from self._chunker.step(now, action[step : step + 1], rewards[step : step + 1], *flags, after, VERSION, {})
        self._last = {name: values[-1:] for name, values in observation.items()}

    def write(self, chunks: Iterator[Chunk], file: BinaryIO, key: int) -> int:
        """Writes chunks with keys from this one on; returns the next. Raises RejectedChunk, and what making them raises."""
        for chunk in chunks:
            check_chunk(self._spec, chunk)
            file.write(_record(self._spec, chunk, key))
            key += 1
        return key

    def rest(self) -> Iterator[Chunk]:
        if self._last:
            yield from self._chunker.drain(self._last, VERSION)

    def _annotate(self, columns: Columns) -> Columns:
        """Adds the columns that an algorithm has besides, with their defaults, and the goals of hindsight."""
        chunks, rows = columns["reward"].shape
        for column in self._spec.extras:
            if column.name not in OF_HINDSIGHT:
                shape = (chunks, *column.shape) if column.once else (chunks, rows, *column.shape)
                columns[column.name] = np.full(shape, column.default or 0, np.dtype(column.dtype))
        return self._hindsight(columns) if self._hindsight else columns
