"""Storage, selector and limiter as one table. No socket in here, and one owner: nothing is locked."""

from __future__ import annotations

import numpy as np

from replay.config import ReplayConfig
from replay.log.state import TableState
from replay.table.capacity import slot_bytes
from replay.table.capacity import slots as slots_that_fit
from replay.table.layout import PRIORITY
from replay.table.limiter import Limiter
from replay.table.selectors import make_selector
from replay.table.storage import Storage
from transport.experience import Chunk, Columns, ExperienceSpec


class Table:
    """Experience that can be sampled.

    An item is one transition; its key is chunk_key * chunk_length + offset and never used twice. Its leaf is the place in
    the ring where it lies. Eviction is first in, first out, by chunk, and one chunk ahead: the slot of the next chunk is
    vacant, so that it can be decompressed where it will rest, and costs nothing if it turns out not to be one.
    """

    def __init__(self, spec: ExperienceSpec, config: ReplayConfig, seed: int, lent_items: int = 0) -> None:
        """Takes address space for the capacity at once; memory fills as chunks arrive. Raises ValueError if nothing fits.

        `lent_items`: items in the learner's slots, which are replay's memory as well.
        """
        self.spec = spec
        self._length = spec.chunk_length
        held = slots_that_fit(spec, config, lent_items)
        slots = held + 1
        self._held = held  # chunks
        self.capacity = held * self._length
        self.slot_bytes = slot_bytes(spec)
        self._storage = Storage(spec, slots)
        self._selector = make_selector(
            config.selector, slots * self._length, config.priority_exponent, np.random.default_rng(seed)
        )
        self.limiter = Limiter(config.min_size, config.samples_per_insert_low, config.samples_per_insert_high)
        self._chunk_keys = np.full(slots, -1, np.int64)
        self._items = np.zeros(slots, np.int64)  # drawable items per slot
        self._next_chunk = 0
        self.size = 0  # drawable items
        self.inserted_items = 0
        self.sampled_items = 0

    @property
    def capacity_bytes(self) -> int:
        """Bytes of all chunks that fit and of the vacant slot, with what it takes to draw them."""
        return self._storage.slots * self.slot_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of the chunks held, with what it takes to draw them."""
        return min(self._next_chunk, self._held) * self.slot_bytes

    def can_insert(self) -> bool:
        """Whether the limiter lets a chunk in."""
        return self.limiter.can_insert(self.size)

    def vacant(self) -> Columns:
        """Where the columns of the next chunk will rest: what is written there before `insert` need not be copied."""
        return self._storage.room(self._next_chunk % self._storage.slots)

    def insert(self, chunk: Chunk) -> int:
        """Stores a chunk that passes `check_chunk`, evicting the oldest when full; returns how many items it brought."""
        items = self._store(chunk)
        self.inserted_items += items
        self.limiter.inserted(items, self.size)
        return items

    def _store(self, chunk: Chunk) -> int:
        slot = self._next_chunk % self._storage.slots
        first = slot * self._length
        drawable = self._storage.write(slot, chunk)
        self._selector.insert(first, drawable, self._initial_priorities(chunk))
        self._chunk_keys[slot] = self._next_chunk
        self._next_chunk += 1
        items = int(drawable.sum())
        self._items[slot] = items
        self.size += items
        self._evict(self._next_chunk % self._storage.slots)
        return items

    def _initial_priorities(self, chunk: Chunk) -> np.ndarray:
        """[chunk_length] float64 of a chunk's items, NaN where none is known; what cannot be a priority counts as unknown."""
        priorities = np.full(self._length, np.nan)
        sent = chunk.columns.get(PRIORITY)
        if sent is not None:
            items = sent[self.spec.history : self.spec.history + chunk.length]
            priorities[: chunk.length] = np.where(np.isfinite(items) & (items >= 0), items, np.nan)
        return priorities

    def _evict(self, slot: int) -> None:
        if self._chunk_keys[slot] >= 0:
            self._selector.evict(slot * self._length, self._length)
            self.size -= int(self._items[slot])
            self._chunk_keys[slot] = -1

    def can_sample(self) -> bool:
        """Whether the limiter lets a batch out, and there are items to draw."""
        return self.size > 0 and self.limiter.can_sample(self.size)

    def sample(self, out: dict[str, np.ndarray]) -> None:
        """Draws a batch into arrays of `layout`."""
        count = len(out["key"])
        leaves, probability = self._selector.sample(count)
        self._storage.gather(leaves, out)
        out["probability"][:] = probability
        slot, offset = np.divmod(leaves, self._length)
        out["key"][:] = self._chunk_keys[slot] * self._length + offset
        self.sampled_items += count
        self.limiter.sampled(count)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        """New priorities [N] for keys [N]; returns how many were taken. Evicted keys and non-finite priorities are left out."""
        chunk, offset = np.divmod(keys, self._length)
        slot = chunk % self._storage.slots
        leaves = slot * self._length + offset
        present = (keys >= 0) & (self._chunk_keys[slot] == chunk) & self._storage.drawable(leaves)
        present &= np.isfinite(priorities) & (priorities >= 0)
        self._selector.update(leaves[present], priorities[present])
        return int(present.sum())

    # ---- another life

    @property
    def next_key(self) -> int:
        """The key that the next chunk will get."""
        return self._next_chunk

    @property
    def oldest_key(self) -> int:
        """Chunks with smaller keys have been evicted."""
        return max(self._next_chunk - self._held, 0)

    def state(self) -> TableState:
        """A copy of all that is known of the chunks held but their rows; what the limiter has counted is left out."""
        selector = self._selector.state()
        return TableState(self._next_chunk, self._chunk_keys.copy(), self.inserted_items, self.sampled_items, selector)

    def begin_from(self, state: TableState) -> None:
        """Before `restore`: takes up what concerns all items."""
        self._selector.begin_from(state.selector)
        self.inserted_items, self.sampled_items = state.inserted_items, state.sampled_items

    def restore(self, key: int, chunk: Chunk) -> int:
        """Stores a chunk under the key it had; keys must grow, and may leave some out. Neither counters nor limiter move."""
        self.skip_to(key)
        return self._store(chunk)

    def skip_to(self, key: int) -> None:
        """The next chunk gets this key, or the one it would have got if that is greater; nothing has the keys between."""
        for missing in range(max(self._next_chunk, key - self._storage.slots), key):
            self._evict((missing + 1) % self._storage.slots)
        self._next_chunk = max(self._next_chunk, key)

    def restore_priorities(self, state: TableState) -> None:
        """Gives the items held the priorities they had; those that came after the state keep what they came with."""
        values = state.selector.values.reshape(len(state.chunk_keys), -1)
        slot = state.chunk_keys % self._storage.slots
        here = (state.chunk_keys >= 0) & (self._chunk_keys[slot] == state.chunk_keys)
        leaves = (slot[here, None] * self._length + np.arange(self._length)).reshape(-1)
        drawable = self._storage.drawable(leaves)
        self._selector.restore(leaves[drawable], values[here].reshape(-1)[drawable], state.selector)

    def check_invariants(self) -> None:
        """For tests: raises AssertionError when the parts disagree."""
        held = self._chunk_keys >= 0
        assert self.size == self._items[held].sum() <= self.capacity
        assert not held[self._next_chunk % self._storage.slots]
        slots = np.arange(self._storage.slots)
        assert (self._chunk_keys[held] % self._storage.slots == slots[held]).all()
        assert ((self._chunk_keys[held] >= self.oldest_key) & (self._chunk_keys[held] < self._next_chunk)).all()
        assert self._selector.available() == self.size
