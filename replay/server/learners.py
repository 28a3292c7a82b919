"""The learner's half of the replay server: slots, requests, priorities, of each of its processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from replay.server.greetings import GREETING, mismatch
from replay.table.base import Table
from replay.table.layout import layout
from transport.experience import ExperienceSpec
from transport.messages import Greet, Hold, PriorityUpdate, Refused, Sample, SampleRequest, SamplerHello, SamplerWelcome
from transport.metrics import Metrics
from transport.slab import Layout, Slab, SlabError
from transport.sockets.frames import cut
from transport.sockets.quarantine import ODDITY
from transport.sockets.server import Server

MOST_LEARNERS = 64
LEASED_BYTES = 256 << 20  # of all learners' slots together, at least
UpdatePriorities = Callable[[np.ndarray, np.ndarray], int]  # of keys [N], priorities [N]; returns how many were taken


@dataclass
class ConnectedLearner:
    """What the server knows of one incarnation of a learner's process."""

    name: str
    incarnation: int
    peer: bytes
    layout: Layout
    slab: Slab | None  # None: batches travel as raw parts
    slots: int
    batch_size: int  # transitions, or chunks
    scratch: np.ndarray = field(repr=False)
    requests: list[SampleRequest] = field(default_factory=list)

    def arrays(self, slot: int) -> dict[str, np.ndarray]:
        """Where the batch of a slot is to be written."""
        return self.slab.slots[slot] if self.slab else self.layout.view(self.scratch)


class Learners:
    """Fills the slots that learners lease, one of each in turn. A new incarnation of a name takes the place of the old.

    A learner that cannot be reached any more is dropped within half a second: no actor waits for batches that it will not draw.
    """

    def __init__(
        self,
        spec: ExperienceSpec,
        table: Table,
        server: Server,
        metrics: Metrics,
        update_priorities: UpdatePriorities | None,
        leased: int = 0,
    ) -> None:
        """`update_priorities`: None where items have none. `leased`: items that learners' slots should hold in all."""
        self._most_leased_bytes = max(2 * layout(spec, leased).slot_bytes, LEASED_BYTES)
        self._spec, self._table, self._server, self._metrics = spec, table, server, metrics
        self._update_priorities = update_priorities
        self.connected: list[ConnectedLearner] = []  # whose turn it is comes first

    @property
    def count(self) -> int:
        return len(self.connected)

    @property
    def waiting(self) -> bool:
        """Whether a learner waits for a batch."""
        return any(learner.requests for learner in self.connected)

    def on_hello(self, peer: bytes, hello: SamplerHello, server_incarnation: int) -> None:
        """A learner greets: a new one, or one that is connected."""
        self._server.offence(peer, "greetings without end", GREETING)
        if reason := mismatch(self._spec, hello):
            self._server.send(peer, Refused(reason))
            return
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
        known.requests.clear()  # once welcome it asks again for whatever it has not got
        self._server.send(peer, SamplerWelcome(server_incarnation, shared=known.slab is not None))

    def _refusal(self, hello: SamplerHello, arrays: Layout) -> str:
        """Why there is no room for one more learner; empty when there is."""
        if len(self.connected) >= MOST_LEARNERS:
            return f"{hello.name} would be one learner too many: there are {MOST_LEARNERS}"
        leased = sum(learner.layout.slot_bytes * learner.slots for learner in self.connected)
        if leased + arrays.slot_bytes * hello.slots > self._most_leased_bytes:
            what = f"{hello.slots} slots of {arrays.slot_bytes:,} bytes"
            return f"{hello.name} asks for {what}; for all there are {self._most_leased_bytes:,} bytes"
        return ""

    def close(self) -> None:
        """Forgets all learners."""
        self._drop(self.connected)

    def expel(self, peer: bytes) -> None:
        """Takes nothing more from the learner at this connection."""
        self._drop(learner for learner in self.connected if learner.peer == peer)

    def _of(self, peer: bytes) -> ConnectedLearner | None:
        return next((learner for learner in self.connected if learner.peer == peer), None)

    def _wanted(self) -> tuple[int, int]:
        """A batch of each learner, and what all their slots hold."""
        return (
            sum(learner.batch_size for learner in self.connected),
            sum(learner.batch_size * learner.slots for learner in self.connected),
        )

    def _drop(self, gone: Iterable[ConnectedLearner]) -> None:
        """Forgets these and gives their memory back."""
        if not (leaving := list(gone)):
            return
        for learner in leaving:
            if learner.slab:
                learner.slab.close()
            self.connected.remove(learner)
        self._table.learners_changed(*self._wanted())

    def on_request(self, peer: bytes, message: SampleRequest, parts: list[bytes]) -> None:
        """A learner leases a slot, maybe with priorities of the batch that it held."""
        learner = self._of(peer)
        if learner is None:
            self._server.offence(peer, "requests, but no greeting", ODDITY)
            self._server.send(peer, Greet())
            return
        if message.priorities:
            self._prioritise(peer, message.priorities, parts)
        if message.slot < learner.slots and len(learner.requests) < learner.slots:
            learner.requests.append(message)
        else:
            self._reject(peer, "requests for slots that it does not have")

    def on_priorities(self, peer: bytes, message: PriorityUpdate, parts: list[bytes]) -> None:
        """A learner sends new priorities of items that it has drawn."""
        if self._of(peer) is None:
            self._server.offence(peer, "priorities, but no greeting", ODDITY)
            self._server.send(peer, Greet())
        else:
            self._prioritise(peer, message.count, parts)

    def _reject(self, peer: bytes, reason: str) -> None:
        self._metrics.count("rejected")
        self._server.offence(peer, reason)

    def _prioritise(self, peer: bytes, count: int, parts: list[bytes]) -> None:
        if [len(part) for part in parts] != [12 * count]:
            self._reject(peer, "priorities of the wrong length")
            return
        keys, priorities = np.frombuffer(parts[0], "<i8", count), np.frombuffer(parts[0], "<f4", count, 8 * count)
        taken = self._update_priorities(keys, priorities) if self._update_priorities else 0
        self._metrics.count("stale_priorities", count - taken)

    def _first(self) -> ConnectedLearner | None:
        """Whose turn it is. One that wants nothing goes to the end of the line; one that waits keeps its place, with a slot half
        filled."""
        for _ in self.connected:
            if self.connected[0].requests:
                return self.connected[0]
            self.connected.append(self.connected.pop(0))
        return None

    def serve(self) -> None:
        """Fills the slots that are leased, as far as there is something to fill them with."""
        while (learner := self._first()) is not None:
            request = learner.requests[-1]  # the slot leased last is still in the processor's cache
            items = self._table.draw(request, learner.arrays(request.slot))
            if items is None:
                return
            learner.requests.pop()
            self.connected.append(self.connected.pop(0))
            self._metrics.count("sampled_items", items)
            parts = () if learner.slab else cut(learner.scratch.data)
            if not self._server.send(learner.peer, Sample(request.slot, request.generation), parts):
                self._drop([learner])

    def reassure(self) -> None:
        """Tells learners that silence is not trouble; drops those that are gone."""
        self._drop([learner for learner in self.connected if not self._server.send(learner.peer, Hold())])


def _connected(peer: bytes, hello: SamplerHello, arrays: Layout) -> ConnectedLearner:
    slab = None
    if hello.slab:
        try:
            slab = Slab.open(arrays, hello.slots, hello.slab)
        except SlabError:
            pass  # another host, or another user's: the raw parts reach it all the same
    scratch = np.zeros(0 if slab else arrays.slot_bytes, np.uint8)
    return ConnectedLearner(hello.name, hello.incarnation, peer, arrays, slab, hello.slots, hello.batch_size, scratch)
