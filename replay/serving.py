"""The learner's half of the replay server: its slots, its requests, its priorities."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from replay.source import Source
from transport.channel import Server, cut
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


def mismatch(spec: ExperienceSpec, hello: WriterHello | SamplerHello) -> str:
    """Why a client cannot be served; empty when it can."""
    if hello.protocol != PROTOCOL:
        return f"{hello.name} speaks protocol {hello.protocol}, replay speaks {PROTOCOL}: use the same version of headrace"
    if hello.spec_digest != spec.digest:
        return f"{hello.name} was made for another experience spec ({hello.spec_digest}, replay has {spec.digest})"
    return ""


@dataclass
class Learner:
    """What the server knows of one life of the learner."""

    incarnation: int
    peer: bytes
    layout: Layout
    slab: Slab | None  # None: batches travel as raw parts
    slots: int
    scratch: np.ndarray = field(repr=False)
    requests: list[SampleRequest] = field(default_factory=list)

    def arrays(self, slot: int) -> dict[str, np.ndarray]:
        """Where the batch of a slot is to be written."""
        return self.slab.slots[slot] if self.slab else self.layout.view(self.scratch)


class Serving:
    """Fills the slots that the learner lends. There is one learner; a new one takes the place of the old."""

    def __init__(self, spec: ExperienceSpec, source: Source, server: Server, metrics: Metrics, incarnation: int) -> None:
        """`incarnation`: the replay server's."""
        self._spec, self._source, self._server, self._metrics, self._incarnation = spec, source, server, metrics, incarnation
        self._learner: Learner | None = None

    @property
    def awaited(self) -> bool:
        """Whether the learner waits for a batch."""
        return bool(self._learner and self._learner.requests)

    def on_hello(self, peer: bytes, hello: SamplerHello) -> None:
        """A learner greets: a new one, or the one that is there."""
        reason = mismatch(self._spec, hello)
        if not reason and (refusal := self._source.refusal(hello.rollouts)):
            reason = f"{hello.name} {refusal}"
        if reason:
            self._server.send(peer, Refused(reason))
            return
        known = self._learner
        if known is None or known.incarnation != hello.incarnation or known.peer != peer:
            self.drop()
            layout = self._source.layout(hello.batch_size)
            slab = None
            if hello.slab:
                try:
                    slab = Slab.open(layout, hello.slots, hello.slab)
                except SlabError:
                    pass  # another host, or another user's: the raw parts reach it all the same
            scratch = np.zeros(layout.slot_bytes, np.uint8)
            self._learner = Learner(hello.incarnation, peer, layout, slab, hello.slots, scratch)
            self._source.connect(hello.batch_size, hello.slots)
        assert self._learner is not None
        self._learner.requests.clear()  # once welcome it asks again for whatever it has not got
        self._server.send(peer, SamplerWelcome(self._incarnation, shared=self._learner.slab is not None))

    def drop(self) -> None:
        """Forgets the learner and gives its memory back."""
        if self._learner and self._learner.slab:
            self._learner.slab.close()
        self._learner = None
        self._source.disconnect()

    def on_request(self, peer: bytes, message: SampleRequest) -> None:
        """The learner lends a slot."""
        if self._learner is None or self._learner.peer != peer:
            self._server.send(peer, Greet())
        elif message.slot < self._learner.slots and len(self._learner.requests) < self._learner.slots:
            self._learner.requests.append(message)
        else:
            self._metrics.count("rejected")

    def on_priorities(self, peer: bytes, message: PriorityUpdate, parts: list[bytes]) -> None:
        """The learner says how much there was to learn from items that it has drawn."""
        if self._learner is None or self._learner.peer != peer:
            self._server.send(peer, Greet())
            return
        if [len(part) for part in parts] != [8 * message.count, 4 * message.count]:
            self._metrics.count("rejected")
            return
        keys, priorities = np.frombuffer(parts[0], "<i8"), np.frombuffer(parts[1], "<f4")
        taken = self._source.update_priorities(keys, priorities)
        self._metrics.count("stale_priorities", message.count - taken)

    def serve(self) -> None:
        """Fills the slots that are lent, as far as there is something to fill them with."""
        while self._learner and self._learner.requests:
            learner = self._learner
            request = learner.requests[-1]  # the slot lent last is still in the processor's cache
            items = self._source.draw(request, learner.arrays(request.slot))
            if items is None:
                return
            learner.requests.pop()
            self._metrics.count("sampled_items", items)
            parts = () if learner.slab else cut(learner.scratch.data)
            if not self._server.send(learner.peer, Sample(request.slot, request.generation, self._source.population), parts):
                self.drop()

    def reassure(self) -> None:
        """Tells the learner that silence is not trouble; finds out whether it is still there."""
        if self._learner and not self._server.send(self._learner.peer, Hold()):
            self.drop()
