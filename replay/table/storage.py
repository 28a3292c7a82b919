"""The memory of the ring: slots for chunks, and gathering batches from them. Episode boundaries are handled here only."""

from __future__ import annotations

import numpy as np

from replay.table.layout import array_name
from transport.experience import Chunk, Columns, ExperienceSpec


def steps_to_boundary(terminated: np.ndarray, valid: np.ndarray, length: int, n_step: int) -> np.ndarray:
    """m of each item, [length] uint8, from terminated and valid [length + n_step] (rows from the first item on).

    An n-step return ends at row k if row k terminates, or if the next row has no action (truncation, or the end of the stream).
    """
    steps = np.zeros(length, np.uint8)
    continues = np.ones(length, bool)
    for k in range(n_step):
        steps += continues
        continues &= (terminated[k : k + length] == 0) & (valid[k + 1 : k + 1 + length] != 0)
    return steps


class Storage:
    """Preallocated columns in `slots`, each of which takes a full chunk or several short ones, one behind the other. The system
    provides the memory as chunks arrive."""

    def __init__(self, spec: ExperienceSpec, slots: int) -> None:
        self.spec = spec
        self.slots = slots
        self.length = spec.chunk_length
        self._rows = spec.rows(spec.chunk_length)
        # [slots, rows, *shape] of each column, [slots, *shape] for `once` columns; and the same memory as [slots * rows, *shape].
        self._chunks = {column.name: np.empty((slots, *column.chunk_shape(self._rows)), column.dtype) for column in spec.resting}
        self._columns = {column.name: self._chunks[column.name].reshape(-1, *column.shape) for column in spec.resting}
        self._compressed = tuple((column.name, column.once) for column in spec.resting if column.codec != "none")
        self._taken = tuple((column, array_name(spec, column)) for column in spec.resting if column.taken != "none")
        self._whole = spec.unit != "transitions"  # whole chunks are drawn, so the rows after a short chunk must be zero
        self._lengths = np.zeros(slots, np.int64)
        self._steps = np.zeros(slots * self.length, np.uint8)
        self._back = np.arange(spec.stack - 1, -1, -1)  # rows back of each frame of a stack, oldest first

    def room(self, slot: int, first: int = 0) -> Columns:
        """The memory of a slot from row `first` on, for the columns that are decompressed."""
        rooms = ((name, self._chunks[name][slot, ...], once) for name, once in self._compressed)
        return {name: room if once else room[first:] for name, room, once in rooms}

    def write(self, slot: int, chunk: Chunk, first: int = 0, wanted: np.ndarray | None = None) -> np.ndarray:
        """Copies a chunk into the rows of a slot from `first` on, except columns that are already in its `room`; returns
        drawable [length] bool. `wanted` [length] bool: of single steps only these are; None: all."""
        spec = self.spec
        rows = spec.rows(chunk.length)
        for column in spec.resting:
            target, values = self._chunks[column.name][slot, ...], chunk.columns[column.name]
            if not column.once:
                if self._whole:
                    target[rows:] = 0
                target = target[first : first + rows]
            if column.codec == "none" or not np.may_share_memory(target, values):
                target[...] = values
        self._lengths[slot] = chunk.length
        terminated, valid = (chunk.columns[name][spec.history :] for name in ("terminated", "valid"))
        drawable = valid[: chunk.length] != 0
        if wanted is not None:
            drawable &= wanted
        leaf = slot * self.length + first
        self._steps[leaf : leaf + chunk.length] = steps_to_boundary(terminated, valid, chunk.length, spec.n_step) * drawable
        return drawable

    def drawable(self, leaves: np.ndarray) -> np.ndarray:
        """Bool [N]: which of the leaves [N] have an item."""
        return self._steps[leaves] > 0

    def gather(self, leaves: np.ndarray, out: dict[str, np.ndarray]) -> None:
        """Fills a batch [B] of transitions from leaves [B], without probability and key."""
        spec = self.spec
        slot, offset = np.divmod(leaves, self.length)
        row = slot * self._rows + spec.history + offset  # [B] the row of observation_t
        steps = self._steps[leaves].astype(np.int64)
        last = row + steps - 1  # [B] the row of the last reward
        terminated = self._columns["terminated"][last] != 0
        # After termination there is no next observation: use the last row instead, because its discount is 0.
        following = np.where(terminated, last, last + 1)
        rows = {
            "window": (row[:, None] + np.arange(-spec.history, spec.n_step + 1)).reshape(-1),  # [B * W]
            "steps": (row[:, None] + np.arange(spec.n_step)).reshape(-1),  # [B * n]
            "row": row,
        }
        for column, name in self._taken:
            target = out[name].reshape(-1, *column.shape)
            index = slot if column.once else rows[column.taken]
            np.take(self._columns[column.name], index, axis=0, out=target, mode="clip")
        age = self._columns["episode_step"]
        np.subtract(spec.history, np.minimum(self._back, age[row][:, None]), out=out["observation_index"])
        reach = np.minimum(self._back, age[following][:, None])
        np.subtract((spec.history + following - row)[:, None], reach, out=out["next_index"])
        out["steps"][:] = steps
        out["terminated"][:] = terminated

    def gather_chunks(self, slots: np.ndarray, out: dict[str, np.ndarray]) -> None:
        """Fills a batch [B] of whole chunks from slots [B], without probability and key."""
        for column in self.spec.resting:
            np.take(self._chunks[column.name], slots, axis=0, out=out[array_name(self.spec, column)], mode="clip")
        out["length"][:] = self._lengths[slots]
