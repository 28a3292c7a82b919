"""Cuts vector steps into self-contained chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from transport.experience import MOST_STARTS, Chunk, Columns, ExperienceSpec, Start

TOGETHER_BYTES = 64 << 20  # of chunks that are copied in one call: a thousand large ones would take seconds
BURSTS = 8  # a single burst stalls the actor and fills replay's queue; many small ones cost more in all


def _unchanged(columns: Columns) -> Columns:
    return columns


class Chunker:
    """Collects the rows of K streams and cuts them into chunks.

    Chunks run across the ends of episodes. A chunk leaves when it holds `chunk_length` items and the `n_step` rows after them, or
    earlier, when its first item has waited for `chunk_seconds`. A truncated episode adds one row without action (valid = 0) that
    holds its last observation; so does `drain` at the end of a stream. The other columns have their default there.

    Rows are stored in the order in which they arrive, all streams side by side, so that a step is one copy per column for any
    number of streams. An index says which rows belong to a stream; it cuts out the chunks that leave together at once.
    """

    def __init__(
        self,
        spec: ExperienceSpec,
        streams: int,
        chunk_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        annotate: Callable[[Columns], Columns] = _unchanged,
        staggered: bool = False,
    ) -> None:
        """`clock` gives seconds; tests pass their own.

        `annotate` adds columns to the columns [M, rows, …] of M chunks that leave together; columns that the spec does not have
        are then dropped. `staggered` makes the first chunks of some streams shorter, so that chunks leave evenly over time, in
        BURSTS bursts.
        """
        self._spec = spec
        self._streams = streams
        self._seconds = chunk_seconds
        self._clock = clock
        self._annotate = annotate
        self._rows = spec.rows(spec.chunk_length)
        self._all = np.arange(streams)
        # A ring of `rows` vector steps: no stream needs more. After the ring come the rows that truncations add, allocated from
        # `_spare`; unused ones are never touched. Rows before a stream's first are never read; they are zero to compress well.
        ring = self._rows * streams
        self._columns = {
            column.name: np.zeros((2 * ring, *column.shape), np.dtype(column.dtype))
            for column in spec.columns
            if column not in spec.extras  # these come with the steps, or from annotate
        }
        self._once = {column.name for column in spec.columns if column.once}
        self._kept: dict[str, np.ndarray] = {}  # columns that come with the steps: their value in rows without action
        self._spare = list(range(2 * ring - 1, ring - 1, -1))
        self._ring = ring
        self._next = 0  # the vector step of the ring to write next
        self._place = np.zeros((streams, self._rows), np.int64)  # [K, rows] places of the rows of each stream, oldest first
        before = np.arange(self._rows - spec.history, self._rows)
        self._place[:, : spec.history] = before * streams + self._all[:, None]
        self._fill = np.full(streams, spec.history)  # [K] number of rows
        length = np.full(streams, spec.chunk_length)
        if staggered:
            length -= (self._all * BURSTS // streams) * spec.chunk_length // BURSTS
        self._leaves = spec.history + length + spec.n_step  # [K] number of rows at which the current chunk leaves
        self._episode_step = np.zeros(streams, np.int32)  # [K] steps since the episode began
        self._since = np.full(streams, clock())  # [K] when the first item of the current chunk arrived
        self._starts: dict[int, list[Start]] = {}  # of each stream that has some, from the current chunk on

    def step(
        self,
        observation: Columns,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        final_observation: Columns,
        policy_version: int | np.ndarray,
        columns: Columns,
    ) -> Iterator[Chunk]:
        """Adds one step of every stream: observation[name] [K, *shape] at rest dtype, the action taken, and its results.
        policy_version: of all streams, or of each [K].

        final_observation[name] [K, *shape] is only read where truncated. columns[name] [K, …]: further columns of the rows, with
        the same names in every step; those that the spec does not have are for `annotate`.
        """
        if columns and not self._kept:
            self._keep(columns)
        row = {**observation, **columns, "action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
        yield from self._append(self._all, row, 1, policy_version)
        self._episode_step += 1
        if truncated.any():
            cut = np.flatnonzero(truncated)
            version = np.broadcast_to(policy_version, self._streams)[cut]
            yield from self._append_last({name: final_observation[name][cut] for name in observation}, cut, version)
        self._episode_step[terminated | truncated] = 0
        if self._clock() - self._since.min() > self._seconds:
            yield from self.late()

    def seeded(self, starts: Iterable[tuple[int, int, int]]) -> None:
        """The next rows of these streams begin episodes with seeds: (stream, seed, level). Call it before these steps."""
        for k, seed, level in starts:
            self._starts.setdefault(k, []).append(Start(int(self._fill[k]) - self._spec.history, seed, level))

    def flush(self) -> Iterator[Chunk]:
        """Cuts what is ready of every stream now."""
        yield from self._cut_each(np.flatnonzero(self._items() > 0))

    def late(self) -> Iterator[Chunk]:
        """Cuts what has waited for chunk_seconds."""
        late = (self._clock() - self._since > self._seconds) & (self._items() > 0)
        yield from self._cut_each(np.flatnonzero(late))

    def drain(self, observation: Columns, policy_version: int) -> Iterator[Chunk]:
        """Ends every stream with `observation` [K, *shape], the next one to act on, and yields the remaining chunks.

        Items near the end bootstrap from it, over fewer than n_step steps. The chunker cannot be used afterwards.
        """
        for _ in range(self._spec.n_step):  # n rows, so that the last real row is an item too
            yield from self._append_last(observation, self._all, policy_version)
        history = self._spec.history
        for k, items in enumerate(self._items().tolist()):
            if items > 0 and self._columns["valid"][self._place[k, history : history + items]].any():
                yield from self._cut(self._all[k : k + 1], items)

    def _append_last(self, observation: Columns, where: np.ndarray, policy_version: int | np.ndarray) -> Iterator[Chunk]:
        row = observation | self._kept
        row |= dict.fromkeys(("action", "reward", "terminated", "truncated"), np.zeros((), np.float32))
        yield from self._append(where, row, 0, policy_version)

    def _keep(self, columns: Columns) -> None:
        """Allocates columns like these [K, …]."""
        extras = {column.name: column for column in self._spec.extras}
        for name, values in columns.items():
            column = extras.get(name)
            dtype = np.dtype(column.dtype if column else values.dtype)
            self._columns[name] = np.zeros((2 * self._ring, *values.shape[1:]), dtype)
            self._kept[name] = np.full((), column.default or 0.0 if column else 0.0, dtype)

    def _append(self, where: np.ndarray, row: Columns, valid: int, policy_version: int | np.ndarray) -> Iterator[Chunk]:
        """Adds one row to the streams `where` [M]; `row` has columns [M, …], or one value for all of them."""
        here: slice | np.ndarray
        if where is self._all:
            first = self._next * self._streams
            here, place = slice(first, first + self._streams), where + first
            self._next = (self._next + 1) % self._rows
        else:
            here = place = np.array([self._spare.pop() for _ in where])
        for name, values in row.items():
            self._columns[name][here] = values
        self._columns["valid"][here] = valid
        self._columns["episode_step"][here] = self._episode_step[where]
        self._columns["policy_version"][here] = policy_version
        fill = self._fill[where]
        self._place[where, fill] = place
        self._fill[where] = fill + 1
        full = fill + 1 == self._leaves[where]
        if full.any():
            yield from self._cut_each(where[full])

    def _items(self) -> np.ndarray:
        """[K] number of items of each stream that have their n following rows."""
        return self._fill - self._spec.history - self._spec.n_step

    def _cut_each(self, where: np.ndarray) -> Iterator[Chunk]:
        """Cuts one chunk with all items of each stream `where` [M]; chunks of the same length are cut together, as many as take
        TOGETHER_BYTES."""
        lengths, together = self._items()[where], max(TOGETHER_BYTES // self._spec.chunk_bytes, 1)
        for length in sorted(set(lengths.tolist())):
            alike = where[lengths == length]
            for first in range(0, len(alike), together):
                yield from self._cut(alike[first : first + together], length)

    def _cut(self, where: np.ndarray, length: int) -> Iterator[Chunk]:
        """Copies the first `length` items of streams `where` [M], and keeps the rows that the next chunks need too."""
        place = self._place[where]  # [M, rows]
        rows = place[:, : self._spec.rows(length)]
        columns = {
            name: column.take(rows[:, self._spec.stack - 1] if name in self._once else rows, axis=0)
            for name, column in self._columns.items()
        }
        columns = self._annotate(columns)
        columns = {column.name: columns[column.name] for column in self._spec.columns}
        self._place[where, : self._rows - length] = place[:, length:]
        freed = place[:, :length]
        self._spare += freed[freed >= self._ring].tolist()
        self._fill[where] -= length
        self._leaves[where] = self._rows
        self._since[where] = self._clock()
        for m, k in enumerate(where.tolist()):
            starts = self._starts_within(k, length) if k in self._starts else ()
            yield Chunk(k, length, {name: column[m] for name, column in columns.items()}, starts)

    def _starts_within(self, k: int, length: int) -> tuple[Start, ...]:
        """Those of the chunk of stream k that is cut now."""
        starts = self._starts.pop(k)
        if later := [Start(start.item - length, start.seed, start.level) for start in starts if start.item >= length]:
            self._starts[k] = later
        return tuple(start for start in starts if start.item < length)[:MOST_STARTS]
