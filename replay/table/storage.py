"""A ring of chunk slots, and the gather that turns leaves into a batch. All knowledge of episode boundaries is here."""

from __future__ import annotations

import numpy as np

from transport.experience import INITIAL_PRIORITY, Chunk, Columns, ExperienceSpec, Field
from transport.slab import Layout


def batch_layout(spec: ExperienceSpec, batch_size: int) -> Layout:
    """The arrays of a batch of B items, as they lie in a slab slot.

    W = stack + n_step rows around each item travel as they rest; observation_index and next_index [B, stack] say which of
    them make up the stack of observation_t and of observation_{t+m}, oldest first. m = steps [B]: n_step, or fewer to the
    boundary. reward [B, n_step] holds reward_t …; entries from m on mean nothing. terminated [B]: the episode terminated
    within the m steps. Where the spec asks for hindsight: k goals achieved later, and the reward t for each.
    """
    window = spec.stack + spec.n_step
    action = next(column for column in spec.columns if column.name == "action")
    return Layout(
        (
            *((f"observation/{field.name}", (batch_size, window, *field.shape), field.dtype) for field in spec.fields),
            ("observation_index", (batch_size, spec.stack), "<i8"),
            ("next_index", (batch_size, spec.stack), "<i8"),
            ("action", (batch_size, *action.shape), action.dtype),
            ("reward", (batch_size, spec.n_step), "<f4"),
            ("steps", (batch_size,), "<i8"),
            ("terminated", (batch_size,), "|b1"),
            ("probability", (batch_size,), "<f8"),
            ("key", (batch_size,), "<i8"),
            ("policy_version", (batch_size,), "<i4"),
            *((column.name, (batch_size, *column.shape), column.dtype) for column in spec.hindsight_columns),
        )
    )


def rollout_layout(spec: ExperienceSpec, chunks: int) -> Layout:
    """The arrays of a batch of B whole chunks, as they lie in a slab slot.

    Every resting column is [B, spec.rows(L), *shape] as it rests, the observation's fields under "observation/NAME", the others
    under their names. The first spec.history rows come before the first item; `length` [B] items follow, of which those with
    `valid` 0 hold an episode's last observation; then the n_step rows after them, to bootstrap from. Whatever lies behind, in a
    chunk shorter than L, is zero. `key` [B] counts chunks as they are drawn.
    """
    rows = spec.rows(spec.chunk_length)
    columns = (
        (rollout_array(spec, column.name), (chunks, rows, *column.shape), column.dtype) for column in resting_columns(spec)
    )
    return Layout((*columns, ("length", (chunks,), "<i8"), ("key", (chunks,), "<i8")))


def rollout_array(spec: ExperienceSpec, column: str) -> str:
    """What a column is called in a batch of rollouts."""
    return f"observation/{column}" if any(column == field.name for field in spec.fields) else column


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


def resting_columns(spec: ExperienceSpec) -> list[Field]:
    """The columns that are kept here: an initial priority goes to the selector and is then spent."""
    return [column for column in spec.columns if column.name != INITIAL_PRIORITY]


class Storage:
    """Chunks in preallocated columns, oldest overwritten first. Pages are touched only as chunks arrive."""

    def __init__(self, spec: ExperienceSpec, slots: int) -> None:
        """Room for `slots` chunks."""
        self.spec = spec
        self.slots = slots
        self.length = spec.chunk_length
        self._rows = spec.rows(spec.chunk_length)
        self._columns = {
            column.name: np.empty((slots * self._rows, *column.shape), np.dtype(column.dtype)) for column in resting_columns(spec)
        }
        self._steps = np.zeros(slots * self.length, np.uint8)
        self._back = np.arange(spec.stack - 1, -1, -1)  # how far back each place of a stack looks, oldest first

    def room(self, slot: int) -> Columns:
        """The memory of a slot: columns [spec.rows(chunk_length), *shape]."""
        first = slot * self._rows
        return {name: column[first : first + self._rows] for name, column in self._columns.items()}

    def write(self, slot: int, chunk: Chunk) -> np.ndarray:
        """Copies a chunk into a slot, save what lies in its `room` already; returns drawable [chunk_length] bool."""
        spec = self.spec
        rows = spec.rows(chunk.length)
        first = slot * self._rows
        for name, column in self._columns.items():
            target = column[first : first + rows]
            if not np.may_share_memory(target, chunk.columns[name]):
                target[:] = chunk.columns[name]
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
        """Fills a batch [B] from leaves [B]; probability and key are the table's to fill."""
        spec = self.spec
        slot, offset = np.divmod(leaves, self.length)
        row = slot * self._rows + spec.history + offset  # [B] the row of observation_t
        steps = self._steps[leaves].astype(np.int64)
        last = row + steps - 1  # [B] the row of the last reward
        terminated = self._columns["terminated"][last] != 0
        # After termination there is no next observation; the last row stands in, its value is discounted to nothing.
        following = np.where(terminated, last, last + 1)
        window = row[:, None] + np.arange(-spec.history, spec.n_step + 1)  # [B, W]
        for field in spec.fields:
            target = out[f"observation/{field.name}"]
            flat = target.reshape(-1, *field.shape)
            np.take(self._columns[field.name], window.reshape(-1), axis=0, out=flat, mode="clip")
        age = self._columns["episode_step"]
        np.subtract(spec.history, np.minimum(self._back, age[row][:, None]), out=out["observation_index"])
        reach = np.minimum(self._back, age[following][:, None])
        np.subtract((spec.history + following - row)[:, None], reach, out=out["next_index"])
        out["action"][:] = self._columns["action"][row]
        np.take(self._columns["reward"], row[:, None] + np.arange(spec.n_step), out=out["reward"], mode="clip")
        out["steps"][:] = steps
        out["terminated"][:] = terminated
        out["policy_version"][:] = self._columns["policy_version"][row]
        for column in spec.hindsight_columns:
            np.take(self._columns[column.name], row, axis=0, out=out[column.name], mode="clip")
