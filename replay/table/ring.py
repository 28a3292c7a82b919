"""Storage, selector and limiter together: experience that can be sampled. Only one thread uses it, so there are no locks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np

from replay.config import ReplayConfig
from replay.shards import KEY_BITS, WHOLE, Shard
from replay.table.base import SelectorState, ShardSelector
from replay.table.layout import PRIORITY, capacity_chunks, leaves_per_chunk, packs, ring_slots, slot_bytes
from replay.table.limiter import Limiter, ShardLimiter
from replay.table.selectors import make_selector
from replay.table.storage import Storage
from transport.experience import Chunk, Columns, ExperienceSpec
from transport.messages.replay import ShardFigures
from transport.metrics import Record
from transport.text import say

# The errors of a selector for the state of another selector.
REFUSED_STATES = (ArithmeticError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class RingState:
    """The state of a ring, without the chunks and the limiter's counts."""

    next_chunk: int
    chunk_keys: np.ndarray  # [N] int64, -1 for none
    inserted_items: int
    sampled_items: int
    selector: SelectorState  # values [N * leaves of the longest chunk]
    counters: Record = field(default_factory=dict)  # of the server


class Resting(NamedTuple):
    """A chunk in the ring."""

    key: int
    slot: int
    leaf: int  # its first
    rows: int  # own ones, those without action included
    items: int


class Ring:
    """The newest chunks. A slot has the rows of a full chunk, or those of several short ones, as slow simulators send.

    An item is a transition, or a whole chunk for sequences; its leaf is its place in the ring. The key of a transition is
    chunk_key * chunk_length + offset, the key of a sequence is its chunk's key; no key is used twice, and with several shards the
    shard's index is above its KEY_BITS. `size`, the counters and the limiter count transitions in both cases.

    Eviction is first in, first out, by chunk, and one chunk ahead: one slot is always vacant. So the next chunk is decompressed
    into its place, and if it is rejected no other chunk has been evicted for it. The slot vacated last is used next, so that
    slots beyond those needed take no memory.
    """

    def __init__(self, spec: ExperienceSpec, config: ReplayConfig, seed: int, leased: int = 0, shard: Shard = WHOLE) -> None:
        """Reserves address space for the whole capacity; memory is used as chunks arrive. Raises ValueError if too little fits.

        `leased`: the items in the learners' slots, which also count as replay's memory.
        """
        self.spec = spec
        self._whole = spec.unit != "transitions"  # items are chunks
        self._leaves = leaves_per_chunk(spec)
        self._capacity_chunks = capacity_chunks(spec, config, leased)
        self._slots = slots = ring_slots(spec, config, leased)
        self._packs = packs(spec)
        self.capacity = self._capacity_chunks * spec.chunk_length
        self.slot_bytes = slot_bytes(spec)
        self._storage = Storage(spec, slots)
        self._selector = make_selector(config, slots * self._leaves, np.random.default_rng(seed))
        band = config.samples_per_insert_low, config.samples_per_insert_high
        self.shard_limiter = ShardLimiter(*band) if shard.count > 1 else None
        self.limiter = self.shard_limiter or Limiter(config.min_size, *band, config.samples_per_insert_limit)
        self._first_key = shard.index << KEY_BITS  # of items
        self._chunks: deque[Resting] = deque()  # oldest first
        self._held = [0] * slots  # chunks in each slot
        self._vacant = list(range(slots - 1, 0, -1))  # slots, the next one last
        self._slot, self._filled = 0, 0  # where the next chunk goes if it fits there, and the rows that are taken
        self._keys = np.zeros(slots * self._leaves, np.int64)  # of each leaf: the item's own key + 1; 0: none
        self._first = np.zeros(slots * self._leaves, np.int64)  # of each chunk, at its key modulo the length: its first leaf
        self._items = np.zeros(slots, np.int64)  # of each sequence: its transitions
        self._numbers = np.arange(1, self._leaves + 1)
        self._rows = 0  # own rows of all chunks
        self._next_chunk = 0
        self.size = 0
        self.inserted_items = 0
        self.sampled_items = 0

    @property
    def capacity_bytes(self) -> int:
        """Bytes of all slots, with their part of the selector's memory."""
        return self._slots * self.slot_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of the slots in use, with their part of the selector's memory."""
        return (self._slots - self._held.count(0)) * self.slot_bytes

    @property
    def items_to_draw(self) -> int:
        """Transitions, or chunks that have any."""
        return sum(chunk.items > 0 for chunk in self._chunks) if self._whole else self.size

    def can_insert(self) -> bool:
        return self.limiter.can_insert(self.size)

    def vacant(self, length: int) -> Columns:
        """Arrays to decompress the columns of the next chunk, of `length` items, into; `insert` does not copy these again."""
        return self._storage.room(*self._place(length))

    def _place(self, length: int) -> tuple[int, int]:
        """The slot and the row in it for the next chunk."""
        if self._filled and not (self._packs and self._filled + self.spec.rows(length) <= self.spec.rows(self.spec.chunk_length)):
            if not self._held[self._slot]:
                self._vacant.insert(0, self._slot)
            self._slot, self._filled = self._vacant.pop(), 0
        return self._slot, self._filled

    def insert(self, chunk: Chunk) -> int:
        """Stores a chunk that passes `check_chunk`, and evicts the oldest if full; returns the number of new transitions."""
        items = self._store(chunk)
        self.inserted_items += items
        self.limiter.inserted(items, self.size)
        return items

    def _store(self, chunk: Chunk) -> int:
        slot, first = self._place(chunk.length)
        drawable = self._storage.write(slot, chunk, first, self._wanted(chunk))
        items = int(drawable.sum())
        if self._whole:
            self._items[slot] = items
            drawable = np.array([items > 0])
        leaf, leaves = slot * self._leaves + first, len(drawable)
        self._selector.insert(leaf, drawable, self._initial_priorities(chunk, leaves))
        key = self._next_chunk
        self._keys[leaf : leaf + leaves] = self._numbers[:leaves] + key * self._leaves
        self._first[key % len(self._first)] = leaf
        self._chunks.append(Resting(key, slot, leaf, self.own_rows(chunk.length), items))
        self._rows += self._chunks[-1].rows
        self._held[slot] += 1
        self._filled = first + self.spec.rows(chunk.length)
        self._next_chunk += 1
        self.size += items
        while self._rows > self.capacity or not self._vacant:
            self._evict()
        self._evict_to(self._next_chunk)
        if self.size < self.limiter.min_size and self.full:  # of short chunks, or of many rows without action: it stays as small
            say(
                f"full with {self.size:,} items, below replay.min_size {self.limiter.min_size:,}: training starts with these · "
                "for more raise --replay.budget-bytes or --replay.capacity"
            )
            self.limiter.min_size = 0
        return items

    def _wanted(self, chunk: Chunk) -> np.ndarray | None:
        """[length] bool: its items that may be drawn; None: all."""
        return None

    def own_rows(self, length: int) -> int:
        """The part of the capacity that a chunk of `length` items takes."""
        return length if self._packs else self.spec.chunk_length

    @property
    def full(self) -> bool:
        """True if a further full chunk evicts one."""
        return self._rows > self.capacity - self.spec.chunk_length or len(self._vacant) <= 1

    def _initial_priorities(self, chunk: Chunk, leaves: int) -> np.ndarray:
        """[leaves] float64; NaN for unknown and invalid priorities."""
        priorities = np.full(leaves, np.nan)
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
                priorities[:] = known
        return priorities

    def _evict(self) -> None:
        chunk = self._chunks.popleft()
        leaves = self._count(chunk)
        self._selector.evict(chunk.leaf, leaves)
        self._keys[chunk.leaf : chunk.leaf + leaves] = 0
        self.size -= chunk.items
        self._rows -= chunk.rows
        self._held[chunk.slot] -= 1
        if not self._held[chunk.slot] and chunk.slot != self._slot:
            self._vacant.append(chunk.slot)

    def _count(self, chunk: Resting) -> int:
        return 1 if self._whole else chunk.rows

    def _evict_to(self, next_chunk: int) -> None:
        """Removes the chunks whose place in `_first` keys before `next_chunk` need."""
        while self._chunks and next_chunk - self.oldest_key > len(self._first):
            self._evict()

    def can_sample(self) -> bool:
        """True if there are items and the limiter allows a sample."""
        return self.size > 0 and self.limiter.can_sample(self.size)

    def sample(self, out: dict[str, np.ndarray]) -> int:
        """Draws a batch into arrays of `layout`; returns its number of transitions."""
        leaves, probability = self._selector.sample(len(out["key"]))
        if self._whole:
            self._storage.gather_chunks(leaves, out)
            count = int(self._items[leaves].sum())
        else:
            self._storage.gather(leaves, out)
            count = len(leaves)
        out["probability"][:] = probability
        np.add(self._keys[leaves], self._first_key - 1, out=out["key"])
        self.sampled_items += count
        self.limiter.sampled(count)
        return count

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        """Sets priorities [N] of keys [N]; returns how many. Skips evicted keys, other shards' and invalid priorities."""
        keys = keys - self._first_key
        chunk, offset = np.divmod(keys, self._leaves)
        leaves = np.minimum(self._first[chunk % len(self._first)] + offset, len(self._keys) - 1)
        present = (keys >= 0) & (self._keys[leaves] == keys + 1) & self._drawable(leaves)
        present &= np.isfinite(priorities) & (priorities >= 0)
        self._selector.update(leaves[present], priorities[present])
        return int(present.sum())

    def _drawable(self, leaves: np.ndarray) -> np.ndarray:
        return self._items[leaves] > 0 if self._whole else self._storage.drawable(leaves)

    def figures(self) -> ShardFigures:
        """The figures that one of several shards reports to the learner."""
        inserted, sampled = self.shard_limiter.own if self.shard_limiter else (0, 0)
        total = cast(ShardSelector, self._selector).total
        return ShardFigures(total, self.size, self.full, inserted, sampled, self.limiter.under_way)

    # ---- restoring after a restart

    @property
    def next_key(self) -> int:
        return self._next_chunk

    @property
    def oldest_key(self) -> int:
        """Chunks with smaller keys have been evicted."""
        return self._chunks[0].key if self._chunks else self._next_chunk

    def state(self) -> RingState:
        every = self._selector.state()
        keys = np.array([chunk.key for chunk in self._chunks] or [-1], np.int64)
        values = np.zeros((len(keys), max(map(self._count, self._chunks), default=1)))
        if self._chunks:
            leaves, own = self._leaves_of(self._chunks, values.shape[1])
            values[own] = every.values[leaves[own]]
        selector = SelectorState(values.reshape(-1), every.numbers)
        return RingState(self._next_chunk, keys, self.inserted_items, self.sampled_items, selector)

    def _leaves_of(self, chunks: Iterable[Resting], width: int) -> tuple[np.ndarray, np.ndarray]:
        """Leaves [N, width] of N chunks, and which of them are their own."""
        first, count = np.array([(chunk.leaf, self._count(chunk)) for chunk in chunks], np.int64).T
        offset = np.arange(width)
        return first[:, None] + offset, offset < count[:, None]

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
        if not self._chunks and not self._filled:  # full chunks take the slots again that they had before a restart
            used = np.roll(np.arange(self._capacity_chunks + 1), -(key % (self._capacity_chunks + 1))).tolist()
            self._slot, *following = [*used, *range(len(used), self._slots)]
            self._vacant = following[::-1]
        self._evict_to(key)
        self._next_chunk = max(self._next_chunk, key)

    def restore_priorities(self, state: RingState) -> None:
        """Sets the priorities of items that the state has; newer items keep their initial priorities."""
        values = state.selector.values.reshape(len(state.chunk_keys), -1)
        saved = {key: place for place, key in enumerate(state.chunk_keys.tolist())}
        here = [chunk for chunk in self._chunks if chunk.key in saved]
        if not here:
            return
        leaves, own = self._leaves_of(here, values.shape[1])
        leaves, values = leaves[own], values[[saved[chunk.key] for chunk in here]][own]
        drawable = self._drawable(leaves)
        self._selector.restore(leaves[drawable], values[drawable])

    def check_invariants(self) -> None:
        """For tests: raises AssertionError if the parts are inconsistent."""
        assert self.size == sum(chunk.items for chunk in self._chunks) <= self._rows <= self.capacity
        assert self._vacant and not any(self._held[slot] for slot in self._vacant)
        keys = [chunk.key for chunk in self._chunks]
        assert keys == sorted(keys) and all(self.oldest_key <= key < self._next_chunk for key in keys)
        expected = np.zeros(len(self._keys), np.int64)
        for chunk in self._chunks:
            leaves = np.arange(self._count(chunk))
            assert not expected[chunk.leaf + leaves].any()
            assert ((chunk.leaf + leaves) // self._leaves == chunk.slot).all()
            expected[chunk.leaf + leaves] = chunk.key * self._leaves + leaves + 1
        assert (self._keys == expected).all()
        drawable = self._drawable(np.arange(len(expected)))
        assert ((self._selector.state().values > 0) == (expected > 0) & drawable).all()
