"""The replay server's side of the learner's processes: slots, requests, priorities."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from replay.config import ReplayProcess
from replay.table.base import Table
from replay.table.item_table import ItemTable
from replay.table.layout import layout
from transport.experience import ExperienceSpec
from transport.messages.fields import Message
from transport.messages.replay import (
    Counted,
    Greet,
    Hold,
    Holding,
    PriorityUpdate,
    Refused,
    Sample,
    SampleRequest,
    SamplerHello,
    SamplerWelcome,
    ShardFigures,
)
from transport.metrics import Metrics
from transport.slab import Layout, Slab, SlabError
from transport.sockets.channel import cut
from transport.sockets.quarantine import ODDITY
from transport.sockets.server import Server

MOST_LEARNERS = 64
PRIORITY_BYTES = 12  # of an item in an update of priorities: its key, and the priority
LEASED_BYTES = 256 << 20  # minimum of the limit on the slots of all learners together


@dataclass
class ConnectedLearner:
    """The server's record of one incarnation of a learner process."""

    name: str
    incarnation: int
    peer: bytes
    layout: Layout
    slab: Slab | None  # None: batches travel as raw parts
    slots: int
    batch_size: int  # transitions, or chunks
    scratch: np.ndarray = field(repr=False)
    requests: list[SampleRequest] = field(default_factory=list)

    def arrays(self, request: SampleRequest, spec: ExperienceSpec) -> dict[str, np.ndarray]:
        """The arrays to write a batch, or one shard's rows of it, to."""
        rows = request.rows
        if rows is None:
            return self.slab.slots[request.slot] if self.slab else self.layout.view(self.scratch)
        if self.slab is None:
            return layout(spec, rows.count).view(self.scratch)
        return {name: array[rows.first : rows.first + rows.count] for name, array in self.slab.slots[request.slot].items()}

    def parts(self, request: SampleRequest, spec: ExperienceSpec) -> list[memoryview]:
        """The raw parts of the answer to a request."""
        if self.slab:
            return []
        used = layout(spec, request.rows.count).slot_bytes if request.rows else self.layout.slot_bytes
        return cut(self.scratch.data[:used])


class Learners:
    """Fills the slots that learners lease, round robin. A new incarnation of a process replaces the old one.

    A learner that cannot be reached any more is removed within half a second, so that the limiter does not make actors wait for
    it.
    """

    def __init__(
        self,
        spec: ExperienceSpec,
        table: Table,
        server: Server,
        metrics: Metrics,
        items: ItemTable | None,
        settings: ReplayProcess,
    ) -> None:
        """`items`: the table as an ItemTable; None for rollouts."""
        self._most_leased_bytes = max(2 * layout(spec, settings.leased).slot_bytes, LEASED_BYTES)
        self._spec, self._table, self._server, self._metrics = spec, table, server, metrics
        self._items, self._shards = items, settings.place.count
        self.connected: list[ConnectedLearner] = []  # in the order of their turns

    @property
    def count(self) -> int:
        return len(self.connected)

    @property
    def waiting(self) -> bool:
        return any(learner.requests for learner in self.connected)

    def on_hello(self, peer: bytes, hello: SamplerHello, server_incarnation: int) -> None:
        """Handles the greeting of a new or a connected learner."""
        known = self._of(peer)
        if known is None or known.incarnation != hello.incarnation:
            self._drop(learner for learner in self.connected if learner.name == hello.name or learner is known)
            arrays = layout(self._spec, hello.batch_size)
            if reason := self._refusal(hello, arrays):
                self._server.send(peer, Refused(reason))
                return
            known = _connected(peer, hello, arrays)
            self.connected.append(known)
            self._table.learners_changed(*self._wanted())
        known.requests.clear()  # after the welcome the learner requests its slots again
        self._server.send(peer, SamplerWelcome(server_incarnation, known.slab is not None, os.getpid()))
        if self._shards > 1:
            self._server.send(peer, self._reassurance())

    def _refusal(self, hello: SamplerHello, arrays: Layout) -> str:
        """Why one more learner cannot be served; "" if it can."""
        if len(self.connected) >= MOST_LEARNERS:
            return f"{hello.name} would be one learner too many: the limit is {MOST_LEARNERS}"
        leased = sum(learner.layout.slot_bytes * learner.slots for learner in self.connected)
        if leased + arrays.slot_bytes * hello.slots > self._most_leased_bytes:
            request = f"{hello.slots} slots of {arrays.slot_bytes:,} bytes"
            return f"{hello.name} requests {request}; the limit for all learners is {self._most_leased_bytes:,} bytes"
        return ""

    def close(self) -> None:
        self._drop(self.connected)

    def expel(self, peer: bytes) -> None:
        """Removes the learner of a connection that is in quarantine."""
        self._drop(learner for learner in self.connected if learner.peer == peer)

    def _of(self, peer: bytes) -> ConnectedLearner | None:
        return next((learner for learner in self.connected if learner.peer == peer), None)

    def _greeted(self, peer: bytes, what: str) -> ConnectedLearner | None:
        """The learner of a connection. A peer that has not greeted is asked to."""
        if (learner := self._of(peer)) is None:
            self._server.offence(peer, f"{what} without a greeting", ODDITY)
            self._server.send(peer, Greet())
        return learner

    def _wanted(self) -> tuple[int, int]:
        """(items in one batch of each learner, items in all their slots)."""
        return (
            sum(learner.batch_size for learner in self.connected),
            sum(learner.batch_size * learner.slots for learner in self.connected),
        )

    def _drop(self, gone: Iterable[ConnectedLearner]) -> None:
        """Removes learners and releases their shared memory."""
        if not (leaving := list(gone)):
            return
        for learner in leaving:
            if learner.slab:
                learner.slab.close()
            self.connected.remove(learner)
        self._table.learners_changed(*self._wanted())

    def on_request(self, peer: bytes, message: SampleRequest, parts: list[bytes]) -> None:
        """A learner leases a slot, perhaps with priorities of the slot's last batch."""
        learner = self._greeted(peer, "requests")
        if learner is None:
            return
        if message.priorities:
            self._prioritise(peer, message.priorities, parts)
        if self._fits(learner, message):
            learner.requests.append(message)
            if self._items and message.rows:
                self._items.adopt(message.rows.counts)
        else:
            self._reject(peer, "requests for slots that do not exist")

    def _fits(self, learner: ConnectedLearner, message: SampleRequest) -> bool:
        """True if the learner has the requested slot, or rows of it. When another shard has ended, one slot may have several
        requests for rows."""
        rows, most = message.rows, learner.slots * self._shards
        if message.slot >= learner.slots or len(learner.requests) >= most or (rows is None) != (self._shards == 1):
            return False
        return rows is None or rows.first + rows.count <= learner.batch_size

    def on_counted(self, peer: bytes, message: Counted) -> None:
        """A learner sends the counts for the limiter of this shard."""
        if self._greeted(peer, "counts") and self._items:
            self._items.adopt(message.counts)

    def on_priorities(self, peer: bytes, message: PriorityUpdate, parts: list[bytes]) -> None:
        """A learner sends new priorities without leasing a slot."""
        if self._greeted(peer, "priorities"):
            self._prioritise(peer, message.count, parts)

    def _reject(self, peer: bytes, reason: str) -> None:
        self._metrics.count("rejected")
        self._server.offence(peer, reason)

    def _prioritise(self, peer: bytes, count: int, parts: list[bytes]) -> None:
        if [len(part) for part in parts] != [PRIORITY_BYTES * count]:
            self._reject(peer, "priorities of the wrong length")
            return
        keys, priorities = np.frombuffer(parts[0], "<i8", count), np.frombuffer(parts[0], "<f4", count, 8 * count)
        taken = self._items.update_priorities(keys, priorities) if self._items else 0
        self._metrics.count("stale_priorities", count - taken)

    def _next(self) -> ConnectedLearner | None:
        """The learner whose turn it is. One without requests goes to the end; one whose slot is partly filled keeps its turn."""
        for _ in self.connected:
            if self.connected[0].requests:
                return self.connected[0]
            self.connected.append(self.connected.pop(0))
        return None

    def serve(self) -> None:
        """Fills leased slots as long as the table has batches."""
        while (learner := self._next()) is not None:
            # The slot leased last is still in the processor's cache. But several shards fill each slot, so all go in order.
            place = 0 if self._shards > 1 else -1
            request = learner.requests[place]
            items = self._table.draw(request, learner.arrays(request, self._spec))
            if items is None:
                return
            learner.requests.pop(place)
            self.connected.append(self.connected.pop(0))
            self._metrics.count("sampled_items", items)
            episodes = int(self._metrics.value("inserted_episodes"))
            figures = self._figures() if request.rows else None
            sample = Sample(request.slot, request.generation, episodes, figures, collected(self._metrics))
            if not self._server.send(learner.peer, sample, learner.parts(request, self._spec)):
                self._drop([learner])

    def reassure(self) -> None:
        """Sends Hold or Holding to the learners, and removes those that cannot be reached."""
        if self.connected:
            message = self._reassurance()
            self._drop([learner for learner in self.connected if not self._server.send(learner.peer, message)])

    def _reassurance(self) -> Message:
        figures = self._figures() if self._shards > 1 else None
        return Holding(figures) if figures else Hold()

    def _figures(self) -> ShardFigures | None:
        return self._items.ring.figures() if self._items else None


def collected(metrics: Metrics) -> int:
    """The environment steps that a replay process has collected since it was started."""
    return int(sum(metrics.value(name) for name in ("inserted_steps", "dropped_steps")) - metrics.value("restored_steps"))


def _connected(peer: bytes, hello: SamplerHello, arrays: Layout) -> ConnectedLearner:
    slab = None
    if hello.slab:
        try:
            slab = Slab.open(arrays, hello.slots, hello.slab)
        except SlabError:
            pass  # on another host, or of another user: it gets batches as raw parts
    scratch = np.zeros(0 if slab else arrays.slot_bytes, np.uint8)
    return ConnectedLearner(hello.name, hello.incarnation, peer, arrays, slab, hello.slots, hello.batch_size, scratch)
