"""The learner's half of the replay server: slots, requests, priorities, of each of its processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from replay.table.base import Source
from replay.table.layout import layout
from transport.experience import ExperienceSpec
from transport.messages import (
    PROTOCOL,
    Greet,
    Hold,
    PriorityUpdate,
    Refused,
    Sample,
    SampleRequest,
    SamplerHello,
    SamplerWelcome,
    WriterHello,
)
from transport.metrics import Metrics
from transport.slab import Layout, Slab, SlabError
from transport.sockets.channel import Server, cut
from transport.sockets.quarantine import ODDITY

MOST_LEARNERS = 64
LENT_BYTES = 256 << 20  # of all learners' slots together, at least
GREETING = 0.2  # of an offence: one greeting in a while is none


def mismatch(spec: ExperienceSpec, hello: WriterHello | SamplerHello) -> str:
    """Why a client cannot be served; empty when it can."""
    if hello.protocol != PROTOCOL:
        return f"{hello.name} speaks protocol {hello.protocol}, replay speaks {PROTOCOL}: use the same version of headrace"
    if hello.spec_digest != spec.digest:
        return f"{hello.name} was made for another experience spec ({hello.spec_digest}, replay has {spec.digest})"
    return ""


@dataclass
class Learner:
    """What the server knows of one life of a learner's process."""

    name: str
    incarnation: int
    peer: bytes
    layout: Layout
    slab: Slab | None  # None: batches travel as raw parts
    slots: int
    batch_size: int  # as the source counts: items, or chunks
    scratch: np.ndarray = field(repr=False)
    requests: list[SampleRequest] = field(default_factory=list)

    def arrays(self, slot: int) -> dict[str, np.ndarray]:
        """Where the batch of a slot is to be written."""
        return self.slab.slots[slot] if self.slab else self.layout.view(self.scratch)


class Serving:
    """Fills the slots that learners lend, one of each in turn. A new life of a name takes the place of the old.

    Who cannot be reached any more is dropped within half a second: nobody waits for batches that nobody will draw.
    """

    def __init__(
        self, spec: ExperienceSpec, source: Source, server: Server, metrics: Metrics, incarnation: int, lent: int = 0
    ) -> None:
        """`incarnation`: the replay server's; `lent`: items, or chunks of rollouts, that learners' slots should hold in all."""
        self._most_lent_bytes = max(2 * layout(spec, lent).slot_bytes, LENT_BYTES)
        self._spec, self._source, self._server, self._metrics, self._incarnation = spec, source, server, metrics, incarnation
        self._learners: list[Learner] = []  # whose turn it is comes first

    @property
    def awaited(self) -> bool:
        """Whether a learner waits for a batch."""
        return any(learner.requests for learner in self._learners)

    def on_hello(self, peer: bytes, hello: SamplerHello) -> None:
        """A learner greets: a new one, or the one that is there."""
        self._server.offence(peer, "greetings without end", GREETING)
        if reason := mismatch(self._spec, hello):
            self._server.send(peer, Refused(reason))
            return
        known = self._of(peer)
        if known is None or known.incarnation != hello.incarnation:
            self._drop(learner for learner in self._learners if learner.name == hello.name or learner is known)
            if len(self._learners) >= MOST_LEARNERS:
                self._server.send(peer, Refused(f"{hello.name} would be one learner too many: there are {MOST_LEARNERS}"))
                return
            arrays = layout(self._spec, hello.batch_size)
            lent = sum(learner.layout.slot_bytes * learner.slots for learner in self._learners)
            if lent + arrays.slot_bytes * hello.slots > self._most_lent_bytes:
                what = f"{hello.slots} slots of {arrays.slot_bytes:,} bytes"
                self._server.send(
                    peer, Refused(f"{hello.name} asks for {what}; for all there are {self._most_lent_bytes:,} bytes")
                )
                return
            slab = None
            if hello.slab:
                try:
                    slab = Slab.open(arrays, hello.slots, hello.slab)
                except SlabError:
                    pass  # another host, or another user's: the raw parts reach it all the same
            scratch = np.zeros(0 if slab else arrays.slot_bytes, np.uint8)
            known = Learner(hello.name, hello.incarnation, peer, arrays, slab, hello.slots, hello.batch_size, scratch)
            self._learners.append(known)
            self._source.connect(*self._wanted())
        known.requests.clear()  # once welcome it asks again for whatever it has not got
        self._server.send(peer, SamplerWelcome(self._incarnation, shared=known.slab is not None))

    def close(self) -> None:
        """Forgets everyone."""
        self._drop(self._learners)

    def quarantine(self, peer: bytes) -> None:
        """Nothing more is taken from whoever is connected there."""
        self._drop(learner for learner in self._learners if learner.peer == peer)

    def _of(self, peer: bytes) -> Learner | None:
        return next((learner for learner in self._learners if learner.peer == peer), None)

    def _wanted(self) -> tuple[int, int]:
        """A batch of each learner, and what all their slots hold."""
        return (
            sum(learner.batch_size for learner in self._learners),
            sum(learner.batch_size * learner.slots for learner in self._learners),
        )

    def _drop(self, gone: Iterable[Learner]) -> None:
        """Forgets these and gives their memory back."""
        if not (leaving := list(gone)):
            return
        for learner in leaving:
            if learner.slab:
                learner.slab.close()
            self._learners.remove(learner)
        self._source.disconnect(*self._wanted())

    def on_request(self, peer: bytes, message: SampleRequest, parts: list[bytes]) -> None:
        """A learner lends a slot, maybe with priorities of what it held."""
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
            self._refuse(peer, "requests for slots that it does not have")

    def on_priorities(self, peer: bytes, message: PriorityUpdate, parts: list[bytes]) -> None:
        """A learner says how much there was to learn from items that it has drawn."""
        if self._of(peer) is None:
            self._server.offence(peer, "priorities, but no greeting", ODDITY)
            self._server.send(peer, Greet())
        else:
            self._prioritise(peer, message.count, parts)

    def _refuse(self, peer: bytes, reason: str) -> None:
        self._metrics.count("rejected")
        self._server.offence(peer, reason)

    def _prioritise(self, peer: bytes, count: int, parts: list[bytes]) -> None:
        if [len(part) for part in parts] != [12 * count]:
            self._refuse(peer, "priorities of the wrong length")
            return
        keys, priorities = np.frombuffer(parts[0], "<i8", count), np.frombuffer(parts[0], "<f4", count, 8 * count)
        taken = self._source.update_priorities(keys, priorities)
        self._metrics.count("stale_priorities", count - taken)

    def _first(self) -> Learner | None:
        """Whose turn it is: who wants nothing goes to the end of the line; who waits keeps the place, with a slot half filled."""
        for _ in self._learners:
            if self._learners[0].requests:
                return self._learners[0]
            self._learners.append(self._learners.pop(0))
        return None

    def serve(self) -> None:
        """Fills the slots that are lent, as far as there is something to fill them with."""
        while (learner := self._first()) is not None:
            request = learner.requests[-1]  # the slot lent last is still in the processor's cache
            items = self._source.draw(request, learner.arrays(request.slot))
            if items is None:
                return
            learner.requests.pop()
            self._learners.append(self._learners.pop(0))
            self._metrics.count("sampled_items", items)
            parts = () if learner.slab else cut(learner.scratch.data)
            if not self._server.send(learner.peer, Sample(request.slot, request.generation), parts):
                self._drop([learner])

    def reassure(self) -> None:
        """Tells learners that silence is not trouble; finds out who is still there."""
        self._drop([learner for learner in self._learners if not self._server.send(learner.peer, Hold())])
