"""Storage, selector and limiter as one: experience that can be sampled. No socket in here, and one owner: nothing is locked."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from replay.config import ReplayConfig
from replay.table.base import SelectorState
from replay.table.capacity import slot_bytes
from replay.table.capacity import slots as slots_that_fit
from replay.table.layout import PRIORITY, leaves_per_chunk
from replay.table.limiter import Limiter
from replay.table.selectors import make_selector
from replay.table.storage import Storage
from transport.experience import Chunk, Columns, ExperienceSpec
from transport.metrics import Record

# What a selector raises for a state that is not its own.
REFUSED_STATES = (ArithmeticError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class RingState:
    """All that is known of the chunks in N slots but their rows; what the limiter has counted is left out."""

    next_chunk: int
    chunk_keys: np.ndarray  # [N] int64, -1 where a slot is empty
    inserted_items: int
    sampled_items: int
    selector: SelectorState  # values [N * leaves per chunk]
    counters: Record = field(default_factory=dict)  # the server's


class Ring:
    """The newest chunks, each in a slot, and how often their items are drawn.

    An item is a transition, or a whole chunk where sequences are drawn; its leaf is its place in the ring. The key of a
    transition is chunk_key * chunk_length + offset, that of a sequence its chunk's; no key is used twice. `size` and the counters
    count transitions in either case, and so does the limiter.

    Eviction is first in, first out, by chunk, and one chunk ahead: the slot of the next chunk is vacant, so that it can be
    decompressed where it will rest, and costs nothing if it turns out not to be one.
    """

    def __init__(self, spec: ExperienceSpec, config: ReplayConfig, seed: int, leased: int = 0) -> None:
        """Takes address space for the capacity at once; memory fills as chunks arrive. Raises ValueError if nothing fits.

        `leased`: items in the learners' slots, which are replay's memory as well.
        """
        self.spec = spec
        self._whole = spec.unit != "transitions"  # items are chunks
        self._leaves = leaves_per_chunk(spec)
        self._held = slots_that_fit(spec, config, leased)  # chunks
        slots = self._held + 1
        self.capacity = self._held * spec.chunk_length
        self.slot_bytes = slot_bytes(spec)
        self._storage = Storage(spec, slots)
        self._selector = make_selector(config, slots * self._leaves, np.random.default_rng(seed))
        self.limiter = Limiter(config.min_size, config.samples_per_insert_low, config.samples_per_insert_high)
        self._chunk_keys = np.full(slots, -1, np.int64)
        self._items = np.zeros(slots, np.int64)  # transitions per slot
        self._next_chunk = 0
        self.size = 0
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
        """Stores a chunk that passes `check_chunk`, evicting the oldest when full; returns how many transitions it brought."""
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
        return items

    def _initial_priorities(self, chunk: Chunk) -> np.ndarray:
        """[leaves per chunk] float64, NaN where none is known; what cannot be a priority counts as unknown."""
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
        """Whether the limiter lets a batch out, and there are items to draw."""
        return self.size > 0 and self.limiter.can_sample(self.size)

    def sample(self, out: dict[str, np.ndarray]) -> int:
        """Draws a batch into arrays of `layout`; returns how many transitions it has."""
        leaves, probability = self._selector.sample(len(out["key"]))
        slot, offset = np.divmod(leaves, self._leaves)
        if self._whole:
            self._storage.gather_chunks(slot, out)
            count = int(self._items[slot].sum())
        else:
            self._storage.gather(leaves, out)
            count = len(leaves)
        out["probability"][:] = probability
        out["key"][:] = self._chunk_keys[slot] * self._leaves + offset
        self.sampled_items += count
        self.limiter.sampled(count)
        return count

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        """New priorities [N] for keys [N]; returns how many were taken. Evicted keys and non-finite priorities are left out."""
        chunk, offset = np.divmod(keys, self._leaves)
        slot = chunk % self._storage.slots
        leaves = slot * self._leaves + offset
        present = (keys >= 0) & (self._chunk_keys[slot] == chunk) & self._drawable(leaves)
        present &= np.isfinite(priorities) & (priorities >= 0)
        self._selector.update(leaves[present], priorities[present])
        return int(present.sum())

    def _drawable(self, leaves: np.ndarray) -> np.ndarray:
        return self._items[leaves] > 0 if self._whole else self._storage.drawable(leaves)

    # ---- restored after a restart

    @property
    def next_key(self) -> int:
        """The key that the next chunk will get."""
        return self._next_chunk

    @property
    def oldest_key(self) -> int:
        """Chunks with smaller keys have been evicted."""
        return max(self._next_chunk - self._held, 0)

    def state(self) -> RingState:
        selector = self._selector.state()
        return RingState(self._next_chunk, self._chunk_keys.copy(), self.inserted_items, self.sampled_items, selector)

    def resume(self, state: RingState) -> None:
        """Before `restore`: takes up what concerns all items. Raises ValueError for the state of another selector."""
        try:
            self._selector.resume(state.selector.numbers)
        except REFUSED_STATES as error:
            raise ValueError(f"the saved state is not of this selector ({' '.join(str(error).split())[:200]})") from error
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

    def restore_priorities(self, state: RingState) -> None:
        """Gives the items held the priorities they had; those that came after the state keep what they came with."""
        values = state.selector.values.reshape(len(state.chunk_keys), -1)
        slot = state.chunk_keys % self._storage.slots
        here = (state.chunk_keys >= 0) & (self._chunk_keys[slot] == state.chunk_keys)
        leaves = (slot[here, None] * self._leaves + np.arange(self._leaves)).reshape(-1)
        drawable = self._drawable(leaves)
        self._selector.restore(leaves[drawable], values[here].reshape(-1)[drawable])

    def check_invariants(self) -> None:
        """For tests: raises AssertionError when the parts disagree."""
        held = self._chunk_keys >= 0
        assert self.size == self._items[held].sum() <= self.capacity
        assert not held[self._next_chunk % self._storage.slots]
        slots = np.arange(self._storage.slots)
        assert (self._chunk_keys[held] % self._storage.slots == slots[held]).all()
        assert ((self._chunk_keys[held] >= self.oldest_key) & (self._chunk_keys[held] < self._next_chunk)).all()
        leaves = np.arange(self._storage.slots * self._leaves)
        expected = np.repeat(held, self._leaves) & self._drawable(leaves)
        assert ((self._selector.state().values > 0) == expected).all()
