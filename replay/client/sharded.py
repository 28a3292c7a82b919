"""The learner's client of several replay shards: all of them fill one batch, each some rows of the same slot."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil

from replay.client.base import MESSAGES_PER_POLL, SILENCE_SECONDS, BatchSampler, ReplayRefused, SampledBatch, packed
from replay.client.shares import Ledger, divide
from replay.shards import KEY_BITS, shard_names
from replay.table.layout import layout
from transport.experience import ExperienceSpec
from transport.lifetime import GOODBYE_SECONDS
from transport.messages.fields import MOST_SHARDS, PROTOCOL
from transport.messages.replay import (
    Counted,
    Greet,
    Holding,
    PriorityUpdate,
    Refused,
    Rows,
    Sample,
    SampleRequest,
    SamplerHello,
    SamplerWelcome,
    ShardFigures,
)
from transport.sockets.channel import Channel, wait
from transport.sockets.client import Client
from transport.sockets.keys import Keys
from transport.text import say

ABSENT_SECONDS = 1.0  # shards report twice a second; after this silence the learner checks whether the process still exists
CHECK_SECONDS = 0.2  # between two checks of all shards
GONE_SECONDS = 10.0  # between two greetings of a shard that has ended: the first waits in the socket until it is back

Priorities = dict[int, tuple[int, bytes]]  # by shard: (how many, packed)


@dataclass(frozen=True)
class _Part:
    """Rows of a slot that a shard is to fill."""

    slot: int
    first: int
    rows: int


@dataclass
class _Shard:
    """A shard as the learner knows it."""

    index: int
    name: str
    client: Client
    server: int | None = None  # its incarnation; None without a welcome
    incarnation: int | None = None  # of its last welcome
    process: psutil.Process | None = None  # where it writes to the slab
    figures: ShardFigures | None = None
    requested: dict[int, _Part] = field(default_factory=dict)  # by generation
    episodes: int = 0
    steps: int = 0
    lost: bool = False
    last_message: float = field(default_factory=time.monotonic)
    greeted: float = 0.0

    @property
    def total(self) -> float:
        """The sum of its items' raised priorities; 0 while it does not answer."""
        return self.figures.total if self.figures and self.server is not None else 0.0


class ShardedSampler(BatchSampler):
    """Requests a batch for every free slot, as Sampler does, but from several shards.

    How many rows a shard fills follows the sum of its priorities by randomised rounding, so an item is drawn as if one table held
    all items. Its probability is that within its shard times the shard's share of the draws: that holds even where a sum was
    out of date.

    A shard that has ended counts as empty until it is back, and the others fill its rows. While the process of a shard exists but
    does not answer, its rows stay leased to it, because it could still write to them.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        name: str,
        incarnation: int,
        spec: ExperienceSpec,
        batch_size: int,
        slots: int,
        min_size: int,
        shared: bool = True,
        keys: Keys | None = None,
        seed: int | None = None,
    ) -> None:
        """`addresses`: of all shards, by index. `min_size`: transitions in all shards together before the first batch is drawn.
        Otherwise as Sampler. Raises SlabError."""
        super().__init__(spec, batch_size, slots)
        self._spec, self._min_size = spec, min_size
        names = shard_names(len(addresses))
        slab_name = self._slab.name if shared else ""
        self._hello = SamplerHello(name, incarnation, PROTOCOL, spec.digest, batch_size, slots, slab_name, len(addresses))
        self._shards = [
            _Shard(index, names[index], Client(address, keys=keys, endpoint="replay")) for index, address in enumerate(addresses)
        ]
        self._random = np.random.default_rng(seed)
        self._ledger = Ledger(len(addresses))
        self._drawing = False  # the shards together have held enough
        self._missing: dict[int, int] = {}  # slot -> rows that are not filled yet
        self._unassigned: list[_Part] = []  # rows of shards that have ended, while no other has items
        self._answered: list[tuple[int, Priorities]] = []  # (slot, priorities of the batch that was in it), not sent yet
        self._next_check = 0.0
        for each in self._shards:
            self._greet(each)

    def answer(self, batch: SampledBatch, priorities: np.ndarray) -> None:
        self._answered.append((batch.slot, self._by_owner(batch.arrays["key"], priorities)))
        if 2 * len(self._answered) >= self._slots:
            self._send_answers()

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        self._send_priorities(self._by_owner(keys, priorities))

    def close(self) -> None:
        self._ready.clear()
        for _, priorities in self._answered:
            self._send_priorities(priorities)
        self._answered.clear()
        for shard in self._shards:
            shard.client.close(GOODBYE_SECONDS)
        self._slab.close()

    # ---- requests

    def _request_free(self) -> None:
        while self._free and self._spread(_Part(min(self._free), 0, self.batch_size)):
            self._free.remove(min(self._free))

    def _send_answers(self) -> None:
        for slot, priorities in self._answered:
            if not self._spread(_Part(slot, 0, self.batch_size), priorities):
                self._free.add(slot)
                self._send_priorities(priorities)
        self._answered.clear()

    def _spread(self, part: _Part, priorities: Priorities | None = None) -> bool:
        """Requests rows of a slot from the shards, and sends priorities along. False while too few items can be drawn."""
        if not self._may_draw():
            return False
        totals = [shard.total for shard in self._shards]
        whole, first = sum(totals), part.first
        for index, count in enumerate(divide(part.rows, totals, float(self._random.random()))):
            shard, (updates, packed_priorities) = self._shards[index], (priorities or {}).get(index, (0, b""))
            if count:
                self._generation += 1
                shard.requested[self._generation] = _Part(part.slot, first, count)
                rows = Rows(first, count, totals[index] / whole, self._ledger.counts(index))
                message = SampleRequest(part.slot, self._generation, self.oldest_version, updates, rows)
                shard.client.send(message, [packed_priorities] if updates else [])
                first += count
                continue
            if updates:
                shard.client.send(PriorityUpdate(updates), [packed_priorities])
            if shard.server is not None:  # its limiter also counts what the others give
                shard.client.send(Counted(self._ledger.counts(index)))
        self._missing.setdefault(part.slot, part.rows)
        return True

    def _may_draw(self) -> bool:
        """True if the shards that answer hold `min_size` items, or one is full and would evict items that were never drawn."""
        present = [shard.figures for shard in self._shards if shard.total > 0 and shard.figures]
        enough = self._drawing or sum(each.items for each in present) >= self._min_size or any(each.full for each in present)
        self._drawing = bool(present) and enough
        return self._drawing

    def _by_owner(self, keys: np.ndarray, priorities: np.ndarray) -> Priorities:
        owners = (keys >> KEY_BITS) % MOST_SHARDS  # demonstrations of shard I have the index MOST_SHARDS + I
        mine = ((index, owners == index) for index in range(len(self._shards)))
        return {index: (int(own.sum()), packed(keys[own], priorities[own])) for index, own in mine if own.any()}

    def _send_priorities(self, priorities: Priorities) -> None:
        """Also to a shard that does not answer: when it is restarted, it restores the items under the same keys."""
        for index, (count, part) in priorities.items():
            self._shards[index].client.send(PriorityUpdate(count), [part])

    # ---- answers

    def _receive(self, timeout_seconds: float) -> None:
        ready: list[Channel] = [shard.client for shard in self._shards]
        if timeout_seconds:
            ready = wait(ready, min(timeout_seconds, CHECK_SECONDS))
        for shard in self._shards:
            if shard.client in ready:
                self._read(shard)
        if (now := time.monotonic()) >= self._next_check:
            self._next_check = now + CHECK_SECONDS
            for shard in self._shards:
                self._check(shard, now)
        if self._unassigned:
            self._reassign(())
        self._request_free()

    def _read(self, shard: _Shard) -> None:
        for _ in range(MESSAGES_PER_POLL):
            arrival = shard.client.receive(0)
            if arrival is None:
                return
            shard.last_message = time.monotonic()
            message, parts = arrival
            if isinstance(message, Sample):
                self._on_sample(shard, message, parts)
            elif isinstance(message, Holding):
                self._on_figures(shard, message.figures)
                if self._drawing and shard.server is not None:
                    shard.client.send(Counted(self._ledger.counts(shard.index)))
            elif isinstance(message, SamplerWelcome):
                self._on_welcome(shard, message)
            elif isinstance(message, Greet) and shard.server is not None:  # otherwise a hello is already in flight
                self._greet(shard)
            elif isinstance(message, Refused):
                raise ReplayRefused(message.reason)

    def _on_sample(self, shard: _Shard, message: Sample, parts: list[bytes]) -> None:
        part = shard.requested.get(message.generation)
        if part is None or part.slot != message.slot or message.figures is None:
            self.impossible += part is not None or message.generation > self._generation  # otherwise it is only late
            return
        if parts and not self._copy(part, parts):
            self.impossible += 1
            return
        del shard.requested[message.generation]
        shard.episodes, shard.steps = message.episodes, message.steps
        self.episodes, self.steps = sum(each.episodes for each in self._shards), [each.steps for each in self._shards]
        self._on_figures(shard, message.figures)
        self._missing[part.slot] -= part.rows
        if not self._missing[part.slot]:
            del self._missing[part.slot]
            self._ready.append(SampledBatch(part.slot, message.generation, self._slab.slots[part.slot]))

    def _copy(self, part: _Part, parts: list[bytes]) -> bool:
        """Copies rows that came over the socket into their slot; False where they are of another size."""
        rows, payload = layout(self._spec, part.rows), b"".join(parts)
        if len(payload) != rows.slot_bytes:
            return False
        for name, array in rows.view(memoryview(payload)).items():
            self._slab.slots[part.slot][name][part.first : part.first + part.rows] = array
        return True

    def _on_figures(self, shard: _Shard, figures: ShardFigures) -> None:
        self._ledger.on_figures(shard.index, figures, time.monotonic())
        shard.figures = figures

    def _on_welcome(self, shard: _Shard, message: SamplerWelcome) -> None:
        if shard.server is not None:
            return  # a second answer to the same greeting
        if message.server_incarnation != shard.incarnation:
            shard.figures = None
            self._ledger.new(shard.index)
        shard.server = shard.incarnation = message.server_incarnation
        shard.process = _find_process(message.pid) if message.shared else None
        if shard.lost:
            shard.lost = False
            say(f"{shard.name} is back: batches come from it again")
        # Messages keep their order: a shard that sends a welcome has filled or forgotten all earlier requests.
        self._take_back(shard)

    # ---- shards that come and go

    def _check(self, shard: _Shard, now: float) -> None:
        """Takes the rows from a shard that has ended; greets one that is silent or has not answered."""
        silent = now - shard.last_message
        patience = GONE_SECONDS if shard.lost else SILENCE_SECONDS
        if not shard.lost and silent > ABSENT_SECONDS and self._ended(shard, silent):
            say(f"{shard.name} has ended: until it is back, batches come from the other shards")
            shard.lost = True
            self._greet(shard)
            self._take_back(shard)
        elif (shard.server is None or silent > SILENCE_SECONDS) and now - shard.greeted > patience:
            self._greet(shard)

    def _ended(self, shard: _Shard, silent_seconds: float) -> bool:
        """True if a shard that was welcomed can no longer write to the slab."""
        if shard.incarnation is None:
            return False
        if shard.process is None:  # its rows come over the socket, where late ones are dropped
            return silent_seconds > SILENCE_SECONDS
        try:
            return not shard.process.is_running() or shard.process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def _take_back(self, shard: _Shard) -> None:
        parts = list(shard.requested.values())
        shard.requested.clear()
        self._reassign(parts)

    def _reassign(self, parts: Iterable[_Part]) -> None:
        """Requests these rows, and those that no shard could fill before, from the shards that answer."""
        waiting, self._unassigned = [*self._unassigned, *parts], []
        for part in waiting:
            if not self._spread(part):
                self._unassigned.append(part)

    def _greet(self, shard: _Shard) -> None:
        shard.server, shard.greeted = None, time.monotonic()
        shard.client.send(self._hello)


def _find_process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None
