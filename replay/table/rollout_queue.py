"""Rollouts: whole chunks, each drawn once, oldest first. What was collected under old weights must not be learned from twice."""

from __future__ import annotations

import numpy as np

from replay.config import ReplayConfig
from replay.table import capacity
from replay.table.checks import RejectedChunk
from replay.table.inbox import Inbox, Pending, Writer
from replay.table.layout import array_name
from transport.experience import Chunk, Columns, ExperienceSpec
from transport.messages import SampleRequest
from transport.metrics import Metrics


class RolloutQueue:
    """Chunks wait in the inbox as they came until the learner leases a slot; they are unpacked straight into it.

    Acknowledged means drawn: a chunk is done with only when its whole batch is. Together with credit for one batch that is
    double buffering: while the learner trains on a batch, actors collect the next and cannot begin the one after. Where the
    learner is several processes, a batch of each, filled one after the other, are one batch to the actors. Nothing is
    written to disk, since a chunk that has not been drawn is still held by its writer.
    """

    def __init__(self, spec: ExperienceSpec, config: ReplayConfig, inbox: Inbox, metrics: Metrics, leased: int) -> None:
        """`leased`: chunks in the learners' slots. Raises ValueError when the memory budget is too small."""
        capacity.slots(spec, config, leased)
        self._overhead_bytes = capacity.overhead_bytes(spec, config, leased)
        self._spec, self._config, self._inbox, self._metrics = spec, config, inbox, metrics
        self._names = tuple((column, array_name(spec, column)) for column in spec.resting)
        self._request: SampleRequest | None = None  # the one whose slot is being filled
        self._filled = 0  # the first so many chunks of the inbox lie in it
        self._items = 0  # items in these
        self._next_key = 0
        self._newest = -1  # policy_version
        self._batch = 0  # chunks of a batch of every learner; 0 while none has been there
        self._streams = 1  # of all writers
        self._shares: dict[Writer, int] = {}  # chunks of a batch that each should bring: together exactly the batch

    @property
    def holds(self) -> bool:
        """A chunk waits until its batch is asked for and complete."""
        return True

    @property
    def memory_bytes(self) -> int:
        """Chunks that wait, and rollouts."""
        return self._overhead_bytes

    @property
    def policy_version(self) -> int:
        """The newest when the learner last asked: what is acted under older weights may be too old when it is drawn."""
        return self._newest

    @property
    def summary(self) -> str:
        return "serves whole chunks, oldest first, each once; nothing is kept"

    def draw(self, request: SampleRequest, arrays: dict[str, np.ndarray]) -> int | None:
        """Unpacks what has come into the slot, dropping what is too old; the batch is drawn when it is complete."""
        pending = self._inbox.pending
        if request is not self._request:
            self._request, self._filled, self._items = request, 0, 0
            if request.oldest_version >= 0:
                self._newest = request.oldest_version + self._config.max_policy_lag
        chunks = len(arrays["key"])
        while self._filled < min(chunks, len(pending)):
            items = self._unpack(pending[self._filled], arrays, request.oldest_version)
            if items is None:
                dropped = pending[self._filled]
                del pending[self._filled]
                self._inbox.use_out_of_order([dropped])
            else:
                self._filled += 1
                self._items += items
        if self._filled < chunks:
            return None
        self._inbox.use_out_of_order([pending.popleft() for _ in range(chunks)])
        self._next_key += chunks
        self._request = None
        self._metrics.count("inserted_steps", self._items)
        self._metrics.count("inserted_chunks", chunks)
        return self._items

    def _unpack(self, pending: Pending, arrays: dict[str, np.ndarray], oldest_version: int) -> int | None:
        """Fills the next row of a batch; returns how many items that are. None, and counted, for what cannot be learned from."""
        at, spec = self._filled, self._spec
        room: Columns = {column.name: arrays[name][at : at + 1].reshape(arrays[name].shape[1:]) for column, name in self._names}
        try:
            chunk = pending.read(spec, room, self._config.reward_limit)
        except RejectedChunk:
            self._metrics.count("rejected")
            pending.writer.rejected += 1
            return None
        versions = self._versions(chunk)
        if len(versions) and versions.max() < oldest_version:
            self._metrics.count("dropped_chunks")
            return None
        rows = spec.rows(chunk.length)
        for column, _ in self._names:
            target, values = room[column.name], chunk.columns[column.name]
            if not np.may_share_memory(target, values):
                target[... if column.once else slice(rows)] = values
            if not column.once:
                target[rows:] = 0
        arrays["length"][at] = chunk.length
        arrays["probability"][at] = 1.0
        arrays["key"][at] = self._next_key + at
        return len(versions)

    def _versions(self, chunk: Chunk) -> np.ndarray:
        """[items] the policy_version of each item."""
        items = slice(self._spec.history, self._spec.history + chunk.length)
        return chunk.columns["policy_version"][items][chunk.columns["valid"][items] != 0]

    def learners_changed(self, batch: int, leased: int) -> None:
        """From the next division on, credit follows the batch of all learners together; without any, the last batch stays the
        measure. Chunks in the slot of a learner that is gone wait for another."""
        self._batch = batch or self._batch

    def writers_changed(self, present: list[Writer]) -> None:
        """Divides the batch by streams, without a remainder: what is collected beyond a batch would be old in the next."""
        self._streams = max(sum(writer.streams for writer in present), 1)
        streams = divided = 0
        self._shares = {}
        for writer in present:
            streams += writer.streams
            self._shares[writer] = self._batch * streams // self._streams - divided
            divided += self._shares[writer]

    def credit_chunks(self, writer: Writer) -> int:
        """`max_policy_lag` times its share of a batch, or times a chunk per stream where that is more.

        The receive budget limits it, but never to less than the share, or both sides would wait for ever. What was dropped but
        cannot be acknowledged yet, because an older chunk of the same writer still waits, comes on top.
        """
        share = self._shares.get(writer, 0)
        room = self._config.receive_bytes * writer.streams // (self._streams * self._spec.chunk_bytes)
        dropped = writer.received - writer.inserted - writer.waiting
        return max(share, min(self._config.max_policy_lag * max(share, writer.streams), room), 1) + dropped

    def credit_bytes(self, writer: Writer) -> int:
        """A writer may send while less than its credit is under way: one byte lets the last chunk go, and no more."""
        return (self.credit_chunks(writer) - 1) * self._spec.chunk_bytes + 1

    def measure(self) -> None:
        """What waits for a batch, beside how much a batch is."""
        pending = self._inbox.pending
        self._metrics.gauge("items", sum(chunk.message.length for chunk in pending))
        self._metrics.gauge("capacity", self._batch * self._spec.chunk_length)
        self._metrics.gauge("samples_per_insert", 1.0)
        self._metrics.gauge("bytes", sum(sum(map(len, chunk.parts)) for chunk in pending))
