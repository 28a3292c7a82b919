"""A ring of chunk slots, and the gather that turns leaves into a batch. All knowledge of episode boundaries is here."""

from __future__ import annotations

import numpy as np

from replay.table.layout import array_name
from transport.experience import Chunk, Column, Columns, ExperienceSpec


def steps_to_boundary(terminated: np.ndarray, valid: np.ndarray, length: int, n_step: int) -> np.ndarray:
    """m of each item: [length] uint8 from terminated, valid [length + n_step] (rows from the first item on).

    Row k ends an item's reach when it terminates, or when the row after it holds no action (truncation, or the stream's end).
    """
    steps = np.zeros(length, np.uint8)
    going = np.ones(length, bool)
    for k in range(n_step):
        steps += going
        going &= (terminated[k : k + length] == 0) & (valid[k + 1 : k + 1 + length] != 0)
    return steps


class Storage:
    """Chunks in preallocated columns, oldest overwritten first. Pages are touched only as chunks arrive."""

    def __init__(self, spec: ExperienceSpec, slots: int) -> None:
        """Room for `slots` chunks."""
        self.spec = spec
        self.slots = slots
        self.length = spec.chunk_length
        self._rows = spec.rows(spec.chunk_length)
        self._columns = {
            column.name: np.empty((slots * column.rows(self._rows), *column.shape), np.dtype(column.dtype))
            for column in spec.resting
        }
        self._taken = tuple((column, array_name(spec, column)) for column in spec.resting if column.taken != "none")
        self._whole = spec.unit != "transitions"  # whether chunks are drawn as a whole, the rows behind a short one included
        self._lengths = np.zeros(slots, np.int64)
        self._steps = np.zeros(slots * self.length, np.uint8)
        self._back = np.arange(spec.stack - 1, -1, -1)  # how far back each place of a stack looks, oldest first

    def room(self, slot: int) -> Columns:
        """The memory of a slot: columns as a Chunk of full length has them."""
        return {column.name: self._of_slot(column, slot) for column in self.spec.resting}

    def _of_slot(self, column: Column, slot: int) -> np.ndarray:
        rows = column.rows(self._rows)
        return self._columns[column.name][slot * rows : (slot + 1) * rows].reshape(column.chunk_shape(rows))

    def write(self, slot: int, chunk: Chunk) -> np.ndarray:
        """Copies a chunk into a slot, save what lies in its `room` already; returns drawable [chunk_length] bool."""
        spec = self.spec
        rows = spec.rows(chunk.length)
        for column in spec.resting:
            target, values = self._of_slot(column, slot), chunk.columns[column.name]
            if not column.once:
                if self._whole:
                    target[rows:] = 0
                target = target[:rows]
            if not np.may_share_memory(target, values):
                target[...] = values
        self._lengths[slot] = chunk.length
        terminated, valid = (chunk.columns[name][spec.history :] for name in ("terminated", "valid"))
        drawable = np.zeros(self.length, bool)
        drawable[: chunk.length] = valid[: chunk.length] != 0
        steps = self._steps[slot * self.length : (slot + 1) * self.length]
        steps[: chunk.length] = steps_to_boundary(terminated, valid, chunk.length, spec.n_step)
        steps[~drawable] = 0
        return drawable

    def drawable(self, leaves: np.ndarray) -> np.ndarray:
        """Whether an item lies at each of the leaves [N]: bool [N]."""
        return self._steps[leaves] > 0

    def gather(self, leaves: np.ndarray, out: dict[str, np.ndarray]) -> None:
        """Fills a batch [B] of transitions from leaves [B]; probability and key are the ring's to fill."""
        spec = self.spec
        slot, offset = np.divmod(leaves, self.length)
        row = slot * self._rows + spec.history + offset  # [B] the row of observation_t
        steps = self._steps[leaves].astype(np.int64)
        last = row + steps - 1  # [B] the row of the last reward
        terminated = self._columns["terminated"][last] != 0
        # After termination there is no next observation; the last row stands in, its value is discounted to nothing.
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
        """Fills a batch [B] of whole chunks from slots [B]; probability and key are the ring's to fill."""
        for column in self.spec.resting:
            chunks = self._columns[column.name].reshape(self.slots, *column.chunk_shape(self._rows))
            np.take(chunks, slots, axis=0, out=out[array_name(self.spec, column)], mode="clip")
        out["length"][:] = self._lengths[slots]
