"""Storage, selector and limiter together: experience that can be sampled. Only one thread uses it, so there are no locks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np

from replay.config import ReplayConfig
from replay.shards import KEY_BITS, WHOLE, Shard
from replay.table.base import SelectorState, ShardSelector
from replay.table.layout import PRIORITY, capacity_chunks, leaves_per_chunk, slot_bytes
from replay.table.limiter import Limiter, ShardLimiter
from replay.table.selectors import make_selector
from replay.table.storage import Storage
from transport.experience import Chunk, Columns, ExperienceSpec
from transport.messages import ShardFigures
from transport.metrics import Record

# The errors of a selector for the state of another selector.
REFUSED_STATES = (ArithmeticError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class RingState:
    """The state of a ring with N slots, without the chunks and the limiter's counts."""

    next_chunk: int
    chunk_keys: np.ndarray  # [N] int64, -1 for an empty slot
    inserted_items: int
    sampled_items: int
    selector: SelectorState  # values [N * leaves per chunk]
    counters: Record = field(default_factory=dict)  # of the server


class Ring:
    """The newest chunks, each in a slot.

    An item is a transition, or a whole chunk for sequences; its leaf is its place in the ring. The key of a transition is
    chunk_key * chunk_length + offset, the key of a sequence is its chunk's key; no key is used twice, and with several shards the
    shard's index is above its KEY_BITS. `size`, the counters and the limiter count transitions in both cases.

    Eviction is first in, first out, by chunk, and one chunk ahead: the slot of the next chunk is always vacant. So the next chunk
    is decompressed into its slot, and if it is rejected no other chunk has been evicted for it.
    """

    def __init__(self, spec: ExperienceSpec, config: ReplayConfig, seed: int, leased: int = 0, shard: Shard = WHOLE) -> None:
        """Reserves address space for the whole capacity; memory is used as chunks arrive. Raises ValueError if too little fits.

        `leased`: the items in the learners' slots, which also count as replay's memory.
        """
        self.spec = spec
        self._whole = spec.unit != "transitions"  # items are chunks
        self._leaves = leaves_per_chunk(spec)
        self._capacity_chunks = capacity_chunks(spec, config, leased)
        slots = self._capacity_chunks + 1
        self.capacity = self._capacity_chunks * spec.chunk_length
        self.slot_bytes = slot_bytes(spec)
        self._storage = Storage(spec, slots)
        self._selector = make_selector(config, slots * self._leaves, np.random.default_rng(seed))
        band = config.samples_per_insert_low, config.samples_per_insert_high
        self.shard_limiter = ShardLimiter(*band) if shard.count > 1 else None
        self.limiter = self.shard_limiter or Limiter(config.min_size, *band)
        self._first_key = shard.index << KEY_BITS
        self._chunk_keys = np.full(slots, -1, np.int64)
        self._items = np.zeros(slots, np.int64)  # transitions per slot
        self._next_chunk = 0
        self.size = 0
        self.inserted_items = 0
        self.sampled_items = 0

    @property
    def capacity_bytes(self) -> int:
        """Bytes of all slots, with their part of the selector's memory."""
        return self._storage.slots * self.slot_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of the slots in use, with their part of the selector's memory."""
        return min(self._next_chunk, self._capacity_chunks) * self.slot_bytes

    def can_insert(self) -> bool:
        """Whether the limiter allows an insert."""
        return self.limiter.can_insert(self.size)

    def vacant(self) -> Columns:
        """Arrays of the next chunk's slot, to decompress columns into; `insert` does not copy these columns again."""
        return self._storage.room(self._next_chunk % self._storage.slots)

    def insert(self, chunk: Chunk) -> int:
        """Stores a chunk that passes `check_chunk`, and evicts the oldest if full; returns the number of new transitions."""
        items = self._store(chunk)
        self.inserted_items += items
        self.limiter.inserted(items, self.size)
        return items

    def _store(self, chunk: Chunk) -> int:
        slot = self._next_chunk % self._storage.slots
        drawable = self._storage.write(slot, chunk)
        items = int(drawable.sum())
        if self._whole:
            drawable = np.array([items > 0])
        self._selector.insert(slot * self._leaves, drawable, self._initial_priorities(chunk))
        self._chunk_keys[slot] = self._next_chunk
        self._next_chunk += 1
        self._items[slot] = items
        self.size += items
        self._evict(self._next_chunk % self._storage.slots)
        if self.size < self.limiter.min_size and self.full:  # of short chunks, or of many rows without action: it stays as small
            self.limiter.min_size = 0
        return items

    @property
    def full(self) -> bool:
        """Whether all slots are in use, so that each further insert evicts a chunk."""
        return int(np.count_nonzero(self._chunk_keys >= 0)) >= self._capacity_chunks

    def _initial_priorities(self, chunk: Chunk) -> np.ndarray:
        """[leaves per chunk] float64; NaN for unknown and invalid priorities."""
        priorities = np.full(self._leaves, np.nan)
        sent = chunk.columns.get(PRIORITY)
        if sent is None:
            return priorities
        known = np.where(np.isfinite(sent) & (sent >= 0), sent, np.nan)
        if known.ndim == 0:  # one for the chunk
            priorities[:] = known
        else:
            known = known[self.spec.history : self.spec.history + chunk.length]
            if self._whole:
                priorities[:] = np.fmax.reduce(known)
            else:
                priorities[: len(known)] = known
        return priorities

    def _evict(self, slot: int) -> None:
        if self._chunk_keys[slot] >= 0:
            self._selector.evict(slot * self._leaves, self._leaves)
            self.size -= int(self._items[slot])
            self._chunk_keys[slot] = -1

    def can_sample(self) -> bool:
        """Whether there are items and the limiter allows a sample."""
        return self.size > 0 and self.limiter.can_sample(self.size)

    def sample(self, out: dict[str, np.ndarray]) -> int:
        """Draws a batch into arrays of `layout`; returns its number of transitions."""
        leaves, probability = self._selector.sample(len(out["key"]))
        slot, offset = np.divmod(leaves, self._leaves)
        if self._whole:
            self._storage.gather_chunks(slot, out)
            count = int(self._items[slot].sum())
        else:
            self._storage.gather(leaves, out)
            count = len(leaves)
        out["probability"][:] = probability
        out["key"][:] = self._chunk_keys[slot] * self._leaves + (offset + self._first_key)
        self.sampled_items += count
        self.limiter.sampled(count)
        return count

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        """Sets priorities [N] of keys [N]; returns how many. Skips evicted keys, other shards' and invalid priorities."""
        keys = keys - self._first_key
        chunk, offset = np.divmod(keys, self._leaves)
        slot = chunk % self._storage.slots
        leaves = slot * self._leaves + offset
        present = (keys >= 0) & (self._chunk_keys[slot] == chunk) & self._drawable(leaves)
        present &= np.isfinite(priorities) & (priorities >= 0)
        self._selector.update(leaves[present], priorities[present])
        return int(present.sum())

    def _drawable(self, leaves: np.ndarray) -> np.ndarray:
        return self._items[leaves] > 0 if self._whole else self._storage.drawable(leaves)

    def figures(self) -> ShardFigures:
        """What one of several shards reports to the learner."""
        inserted, sampled = self.shard_limiter.own if self.shard_limiter else (0, 0)
        total = cast(ShardSelector, self._selector).total
        return ShardFigures(total, self.size, self.full, inserted, sampled, self.limiter.under_way)

    # ---- restoring after a restart

    @property
    def next_key(self) -> int:
        """The key of the next chunk."""
        return self._next_chunk

    @property
    def oldest_key(self) -> int:
        """Chunks with smaller keys have been evicted."""
        return max(self._next_chunk - self._capacity_chunks, 0)

    def state(self) -> RingState:
        selector = self._selector.state()
        return RingState(self._next_chunk, self._chunk_keys.copy(), self.inserted_items, self.sampled_items, selector)

    def resume(self, state: RingState) -> None:
        """Continues from the state's counters and selector numbers; call it before `restore`. Raises ValueError for the state of
        another selector."""
        try:
            self._selector.resume(state.selector.numbers)
        except REFUSED_STATES as error:
            raise ValueError(f"the saved state is not of this selector ({' '.join(str(error).split())[:200]})") from error
        self.inserted_items, self.sampled_items = state.inserted_items, state.sampled_items

    def restore(self, key: int, chunk: Chunk) -> int:
        """Stores a chunk under its old key. Keys must increase, with gaps allowed. Counters and limiter do not change."""
        self.skip_to(key)
        return self._store(chunk)

    def skip_to(self, key: int) -> None:
        """Raises the key of the next chunk to `key`, if it is smaller; no chunk gets the keys in between."""
        for missing in range(max(self._next_chunk, key - self._storage.slots), key):
            self._evict((missing + 1) % self._storage.slots)
        self._next_chunk = max(self._next_chunk, key)

    def restore_priorities(self, state: RingState) -> None:
        """Sets the priorities of items that the state has; newer items keep their initial priorities."""
        values = state.selector.values.reshape(len(state.chunk_keys), -1)
        slot = state.chunk_keys % self._storage.slots
        here = (state.chunk_keys >= 0) & (self._chunk_keys[slot] == state.chunk_keys)
        leaves = (slot[here, None] * self._leaves + np.arange(self._leaves)).reshape(-1)
        drawable = self._drawable(leaves)
        self._selector.restore(leaves[drawable], values[here].reshape(-1)[drawable])

    def check_invariants(self) -> None:
        """For tests: raises AssertionError if the parts are inconsistent."""
        used = self._chunk_keys >= 0
        assert self.size == self._items[used].sum() <= self.capacity
        assert not used[self._next_chunk % self._storage.slots]
        slots = np.arange(self._storage.slots)
        assert (self._chunk_keys[used] % self._storage.slots == slots[used]).all()
        assert ((self._chunk_keys[used] >= self.oldest_key) & (self._chunk_keys[used] < self._next_chunk)).all()
        leaves = np.arange(self._storage.slots * self._leaves)
        expected = np.repeat(used, self._leaves) & self._drawable(leaves)
        assert ((self._selector.state().values > 0) == expected).all()
