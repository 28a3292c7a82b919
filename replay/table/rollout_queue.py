"""The table for rollouts: whole chunks, each drawn once, oldest first, as on-policy algorithms need them."""

from __future__ import annotations

import numpy as np

from replay.config import ReplayConfig
from replay.table.inbox import Inbox, Pending, RejectedChunk, Writer
from replay.table.layout import array_name, capacity_chunks, overhead_bytes
from transport.experience import Chunk, Columns, ExperienceSpec
from transport.messages.replay import SampleRequest
from transport.metrics import Metrics


class RolloutQueue:
    """Chunks wait in the inbox, packed, until the learner leases a slot; then they are unpacked directly into it.

    A chunk is acknowledged when its whole batch has been drawn. With a credit of one batch that is double buffering: while the
    learner trains on a batch, actors collect the next one and cannot start the one after it. With several learner processes, the
    batches of all of them together are one batch for the actors. Nothing is logged, because writers keep the chunks that have
    not been drawn.
    """

    def __init__(self, spec: ExperienceSpec, config: ReplayConfig, inbox: Inbox, metrics: Metrics, leased: int) -> None:
        """`leased`: the chunks in the learners' slots. Raises ValueError if the memory budget is too small."""
        capacity_chunks(spec, config, leased)
        self._overhead_bytes = overhead_bytes(spec, config, leased)
        self._spec, self._config, self._inbox, self._metrics = spec, config, inbox, metrics
        self._names = tuple((column, array_name(spec, column)) for column in spec.resting)
        self._request: SampleRequest | None = None  # the request whose slot is being filled
        self._filled = 0  # the number of chunks, from the start of the inbox, that are in the slot
        self._items = 0  # items in these chunks
        self._next_key = 0
        self._newest = -1  # the newest policy_version at the last request
        self._batch = 0  # chunks in the batches of all learners together; 0 before the first learner
        self._streams = 1  # of all writers
        self._shares: dict[Writer, int] = {}  # chunks of a batch that each writer should send; their sum is the batch

    @property
    def blocked(self) -> bool:
        return True  # a chunk always waits until its batch is requested and complete

    @property
    def memory_bytes(self) -> int:
        return self._overhead_bytes

    @property
    def policy_version(self) -> int:
        """The newest at the learner's last request: steps under older weights may be too old when they are drawn."""
        return self._newest

    @property
    def summary(self) -> str:
        return "serves whole chunks, oldest first, each once; nothing is kept"

    def draw(self, request: SampleRequest, arrays: dict[str, np.ndarray]) -> int | None:
        """Unpacks waiting chunks into the slot, and drops those that are too old, until the batch is complete."""
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
        """Fills the next row of a batch; returns its number of items. None for a chunk that is invalid or too old (counted)."""
        at, spec = self._filled, self._spec
        room: Columns = {column.name: arrays[name][at : at + 1].reshape(arrays[name].shape[1:]) for column, name in self._names}
        try:
            chunk = pending.read(spec, room)
        except RejectedChunk as error:
            self._metrics.count("rejected")
            pending.writer.rejected, pending.writer.fault = pending.writer.rejected + 1, str(error)
            return None
        versions = self._versions(chunk)
        if len(versions) and versions.max() < oldest_version:
            self._metrics.count("dropped_chunks")
            self._metrics.count("dropped_steps", len(versions))
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
        """The policy_version [items] of each item."""
        items = slice(self._spec.history, self._spec.history + chunk.length)
        return chunk.columns["policy_version"][items][chunk.columns["valid"][items] != 0]

    def learners_changed(self, batch: int, leased: int) -> None:
        """Sets the batch by which the credit is divided next; without learners the last one stays.

        Chunks in the slot of a learner that is gone wait for another learner.
        """
        self._batch = batch or self._batch

    def writers_changed(self, present: list[Writer]) -> None:
        """Divides the batch by streams, without a remainder: chunks beyond a batch would be old in the next one."""
        self._streams = max(sum(writer.streams for writer in present), 1)
        streams = divided = 0
        self._shares = {}
        for writer in present:
            streams += writer.streams
            self._shares[writer] = self._batch * streams // self._streams - divided
            divided += self._shares[writer]

    def credit_chunks(self, writer: Writer) -> int:
        """`max_policy_lag` times the writer's share of a batch, or times one chunk per stream if that is more.

        The receive budget limits it, but not below the share, or both sides would wait for ever. Dropped chunks that cannot be
        acknowledged yet, because an older chunk of the writer still waits, are added.
        """
        share = self._shares.get(writer, 0)
        room = self._config.receive_bytes * writer.streams // (self._streams * self._spec.chunk_bytes)
        dropped = writer.received - writer.inserted - writer.waiting
        return max(share, min(self._config.max_policy_lag * max(share, writer.streams), room), 1) + dropped

    def credit(self, writer: Writer) -> int:
        """A writer may send while its outstanding bytes are below the credit, so one byte more allows exactly the last chunk."""
        return (self.credit_chunks(writer) - 1) * self._spec.chunk_bytes + 1

    def measure(self) -> None:
        pending = self._inbox.pending
        self._metrics.gauge("items", sum(chunk.message.length for chunk in pending))
        self._metrics.gauge("capacity", self._batch * self._spec.chunk_length)
        self._metrics.gauge("samples_per_insert", 1.0)
        self._metrics.gauge("bytes", sum(sum(map(len, chunk.parts)) for chunk in pending))
