"""Vector steps in, self-contained chunks out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from transport.experience import Chunk, Columns, ExperienceSpec


class Chunker:
    """Collects the rows of K streams and cuts them into chunks.

    Chunks run across the ends of episodes. A chunk leaves when it holds `chunk_length` items and the `n_step` rows after
    them, or, shorter, when its first item has waited for `chunk_seconds`. A truncated episode adds one row without action
    (valid = 0) that holds its last observation; so does `drain`, where a stream ends. What is remembered is NaN there.
    """

    def __init__(
        self, spec: ExperienceSpec, streams: int, chunk_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` gives seconds; tests bring their own."""
        self._spec = spec
        self._streams = streams
        self._seconds = chunk_seconds
        self._clock = clock
        self._rows = spec.rows(spec.chunk_length)
        # Rows before a stream's first are never looked at; zeros keep them harmless and cheap to compress.
        self._buffer = {
            column.name: np.zeros((streams, self._rows, *column.shape), np.dtype(column.dtype)) for column in spec.columns
        }
        self._fill = np.full(streams, spec.history)  # [K] rows held
        self._episode_step = np.zeros(streams, np.int32)  # [K] age of the observation acted on
        self._since = np.full(streams, clock())  # [K] when the first item of the chunk being filled came

    def step(
        self,
        observation: Columns,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        final_observation: Columns,
        policy_version: int,
        remembered: Columns,
    ) -> Iterator[Chunk]:
        """One step of every stream: observation[name] [K, *shape] at rest, what was done on it, and what came of that.

        final_observation[name] [K, *shape] is read only where truncated. remembered[name] [K] has what the spec asks for.
        """
        everyone = np.arange(self._streams)
        row = dict(observation) | remembered
        row.update(action=action, reward=reward, terminated=terminated, truncated=truncated)
        yield from self._append(everyone, row, valid=1, policy_version=policy_version)
        self._episode_step += 1
        if truncated.any():
            cut = np.flatnonzero(truncated)
            yield from self._append_last({name: final_observation[name][cut] for name in observation}, cut, policy_version)
        self._episode_step[terminated | truncated] = 0
        if self._clock() - self._since.min() > self._seconds:
            yield from self._late()

    def drain(self, observation: Columns, policy_version: int) -> Iterator[Chunk]:
        """Ends every stream at `observation` [K, *shape], the one that would be acted on next; yields what is left.

        Items near the end bootstrap from it, over fewer than n_step steps. Afterwards the chunker is spent.
        """
        everyone = np.arange(self._streams)
        for _ in range(self._spec.n_step):  # n rows, so that the last real row is an item too
            yield from self._append_last(observation, everyone, policy_version)
        for k in range(self._streams):
            length = self._held(k)
            if length > 0 and self._buffer["valid"][k, self._spec.history : self._spec.history + length].any():
                yield self._cut(k, length)

    def _append_last(self, observation: Columns, where: np.ndarray, policy_version: int) -> Iterator[Chunk]:
        row = dict(observation) | dict.fromkeys(self._spec.remembered, np.full(len(where), np.nan, np.float32))
        nothing = np.zeros(len(where), np.float32)
        action = np.zeros((len(where), *self._buffer["action"].shape[2:]), np.float32)
        row.update(action=action, reward=nothing, terminated=nothing, truncated=nothing)
        yield from self._append(where, row, valid=0, policy_version=policy_version)

    def _append(self, where: np.ndarray, row: Columns, valid: int, policy_version: int) -> Iterator[Chunk]:
        """Adds one row to the streams `where` [M]; `row` holds [M, …] columns."""
        place = self._fill[where]
        for name, values in row.items():
            self._buffer[name][where, place] = values
        self._buffer["valid"][where, place] = valid
        self._buffer["episode_step"][where, place] = self._episode_step[where]
        self._buffer["policy_version"][where, place] = policy_version
        self._fill[where] = place + 1
        for k in where[place + 1 == self._rows]:
            yield self._cut(int(k), self._spec.chunk_length)

    def _held(self, k: int) -> int:
        """Items of stream k whose n following rows are there."""
        return int(self._fill[k]) - self._spec.history - self._spec.n_step

    def _late(self) -> Iterator[Chunk]:
        for k in map(int, np.flatnonzero(self._clock() - self._since > self._seconds)):
            if self._held(k) > 0:
                yield self._cut(k, self._held(k))

    def _cut(self, k: int, length: int) -> Chunk:
        """Copies the first `length` items of stream k out, and keeps the rows that the next chunk needs as well."""
        rows = self._spec.rows(length)
        chunk = Chunk(k, length, {name: column[k, :rows].copy() for name, column in self._buffer.items()})
        kept = int(self._fill[k]) - length
        for column in self._buffer.values():
            column[k, :kept] = column[k, length : length + kept].copy()
        self._fill[k] = kept
        self._since[k] = self._clock()
        return chunk
