"""The replay server: one thread owns all experience, and one socket serves all actors and learners."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from replay.config import ReplayProcess
from replay.log.demonstrations import Demonstrations, filled_ring
from replay.log.human_steps import HumanSteps
from replay.log.journal import Journal
from replay.server.learners import PRIORITY_BYTES, Learners
from replay.server.writers import Writers
from replay.table.base import Table
from replay.table.inbox import Inbox
from replay.table.item_table import ItemTable
from replay.table.limiter import SPARE_SECONDS
from replay.table.ring import Ring
from replay.table.rollout_queue import RolloutQueue
from transport.compression import chunk_wire_bytes
from transport.experience import ExperienceSpec
from transport.messages.fields import PROTOCOL
from transport.messages.replay import (
    Counted,
    Goodbye,
    Insert,
    Present,
    PriorityUpdate,
    Refused,
    SampleRequest,
    SamplerHello,
    WriterHello,
)
from transport.metrics import Metrics, Record
from transport.sockets.channel import QUEUE_MESSAGES, wait
from transport.sockets.keys import WRITERS, Keys, role_of
from transport.sockets.server import Server

HOLD_SECONDS = 0.5  # interval of Hold messages to peers that wait for the limiter
MESSAGES_PER_TURN = 64
LEAST_QUEUE = 64  # minimum of unread messages per peer: above the credit, which allows fewer large chunks
GREETING = 0.2  # weight of a greeting as an offence: only many of them in a short time lead to quarantine
COUNTERS = (
    "inserted_steps",
    "inserted_chunks",
    "sampled_items",
    "duplicates",
    "gaps",
    "rejected",
    "stale_priorities",
    "human_steps",
)


class Tables(NamedTuple):
    """Where the server keeps experience. `items` is the table as an ItemTable; None for rollouts, which are not kept."""

    inbox: Inbox
    table: Table
    items: ItemTable | None
    journal: Journal | None


def make_tables(
    spec: ExperienceSpec,
    settings: ReplayProcess,
    metrics: Metrics,
    folder: Path | None,
    interrupted: Callable[[], bool],
    demonstrations: Path | None = None,
    human_steps: Path | None = None,
) -> Tables:
    """The table for the spec's unit, restored from `folder` if one is given; rollouts are not logged. `demonstrations`: a folder
    of segments, too; None: there are none. In an offline run the table is filled from it alone. `human_steps`: the folder of
    their log; None: they are kept in memory only.

    Raises ValueError, RestoreStopped, OSError.
    """
    config, leased = settings.replay, settings.leased
    inbox = Inbox(config.receive_bytes // spec.chunk_bytes)
    if spec.unit == "rollouts":
        return Tables(inbox, RolloutQueue(spec, config, inbox, metrics, leased), None, None)
    if settings.offline and demonstrations:
        ring = filled_ring(demonstrations, spec, config, settings.seed, settings.place, settings.place)
        items = ItemTable(ring, config, inbox, metrics, None, leased, offline=True)
        return Tables(inbox, items, items, None)
    ring = Ring(spec, config, settings.seed, leased, settings.place)
    journal = Journal(folder, ring, config, interrupted) if folder else None
    shown = Demonstrations(demonstrations, spec, config, settings.seed, settings.place) if demonstrations else None
    steered = HumanSteps(spec, config, settings.seed, settings.place, human_steps, interrupted)
    items = ItemTable(ring, config, inbox, metrics, journal, leased, shown, human_steps=steered)
    return Tables(inbox, items, items, journal)


class ReplayServer:
    """Takes chunks from actors and serves batches to learners. Call `turn` in a loop."""

    def __init__(
        self,
        spec: ExperienceSpec,
        settings: ReplayProcess,
        address: str,
        incarnation: int,
        metrics: Metrics,
        folder: Path | None = None,
        interrupted: Callable[[], bool] = lambda: False,
        keys: Keys | None = None,
        demonstrations: Path | None = None,
        human_steps: Path | None = None,
    ) -> None:
        """Restores the experience in `folder`, if one is given, then binds.

        `interrupted` is called often while it restores, and ends that if true. Raises ValueError if not one chunk fits or the
        folder belongs to another run, RestoreStopped if interrupted, OSError if the address cannot be bound.
        """
        self.inbox, self.table, self.items, self.journal = make_tables(
            spec, settings, metrics, folder, interrupted, demonstrations, human_steps
        )
        self._human_steps = self.items.human_steps if self.items else None
        self._spec, self._shards = spec, settings.place.count
        self._metrics, self._incarnation = metrics, incarnation
        chunk_bytes = chunk_wire_bytes(spec)
        part_bytes = max(chunk_bytes, 1 << 20)
        receive_queue = min(max(settings.replay.receive_bytes // part_bytes, LEAST_QUEUE), QUEUE_MESSAGES)
        part_bytes = max(part_bytes, PRIORITY_BYTES * settings.leased)  # or the connection of a large batch's learner would break
        self.socket = Server(
            address, part_bytes, receive_queue=receive_queue, keys=keys, endpoint="replay", most_bytes=chunk_bytes
        )
        self.address = self.socket.address
        self.writers = Writers(spec, self.table, self.inbox, self.journal, self.socket, metrics, settings.place)
        self.learners = Learners(spec, self.table, self.socket, metrics, self.items, settings)
        self._next_hold = 0.0
        self.paused = False  # whether the run is paused: time in which nothing is drawn is then idle, not blocked by the limiter
        counters = COUNTERS if self.items else (*COUNTERS, "dropped_chunks", "dropped_steps")
        restored = self.journal.counters if self.journal else {}
        metrics.begin_at(dict.fromkeys(counters, 0.0) | restored)
        metrics.gauge("restored_steps", self.steps())

    def steps(self) -> int:
        """Environment steps that have been collected, with those of earlier incarnations whose experience was restored."""
        return int(self._metrics.value("inserted_steps") + self._metrics.value("dropped_steps"))

    @property
    def ring(self) -> Ring:
        """The ring of the item table; not for rollouts."""
        assert self.items is not None
        return self.items.ring

    def turn(self, timeout_seconds: float) -> None:
        """Reads messages, inserts and samples as the limiter allows, and answers. Waits at most `timeout_seconds` for work."""
        with self._metrics.phase(self._idle_phase()):
            if not self.inbox.pending or self.table.blocked:
                spare = self.items and self.learners.waiting
                wait([self.socket], min(timeout_seconds, SPARE_SECONDS) if spare else timeout_seconds)
        with self._metrics.phase("busy"):
            for _ in range(MESSAGES_PER_TURN):
                arrival = self.socket.receive()
                if arrival is None:
                    break
                self._take(*arrival)
            if self.items:
                self.items.insert()
            self.writers.acknowledge()
            self.learners.serve()
            self.writers.acknowledge()
            if time.monotonic() >= self._next_hold:
                self._next_hold = time.monotonic() + HOLD_SECONDS
                self.writers.reassure()
                self.learners.reassure()
            self.writers.send_credit()
            for peer in self.socket.expelled():
                self.writers.expel(peer)
                self.learners.expel(peer)
            if self.journal:
                self.journal.turn(self._counters)
            if self._human_steps:
                self._human_steps.turn()

    def close(self) -> str:
        """Closes the socket and releases the learners' memory; returns when everything is on disk, or, in a line, what could not
        be written."""
        self.learners.close()
        self.socket.close()
        unsaved = [
            self.journal.close(self._counters) if self.journal else "",
            self._human_steps.close() if self._human_steps else "",
        ]
        return "; ".join(filter(None, unsaved))

    def end_of_run(self) -> None:
        """The run is being stopped: inserts no longer wait for the learner, so that actors can send their last chunks at once."""
        if self.items:
            self.ring.limiter.ended = True

    def measure(self) -> None:
        self.table.measure()
        self.writers.measure()
        self._metrics.gauge("malformed", self.socket.malformed)
        self._metrics.gauge("impostors", self.socket.impostors)
        self._metrics.gauge("handshakes_failed", self.socket.handshakes_failed)
        self._metrics.gauge("quarantined", self.socket.quarantined)
        self._metrics.gauge("unread", self.socket.unread)
        self._metrics.gauge("received_bytes", self.socket.received_bytes)

    def _counters(self) -> Record:
        return {name: self._metrics.value(name) for name in COUNTERS}

    def _idle_phase(self) -> str:
        # The reason for waiting, from which the bottleneck report is made. Chunks may also wait because a batch is incomplete.
        if self.paused:
            return "idle"
        if self.learners.waiting:
            return "sample_hold"
        if self.inbox.pending:
            return "insert_hold"
        return "idle"

    def _take(self, peer: bytes, message: object, parts: list[bytes]) -> None:
        """Handles a message. If it causes an error, that counts as an offence of its sender."""
        try:
            self._handle(peer, message, parts)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            self._metrics.count("rejected")
            self.socket.offence(peer, "a message that cannot be processed")

    def _handle(self, peer: bytes, message: object, parts: list[bytes]) -> None:
        if isinstance(message, Insert):
            self.writers.on_insert(peer, message, parts)
        elif isinstance(message, SampleRequest):
            self.learners.on_request(peer, message, parts)
        elif isinstance(message, PriorityUpdate):
            self.learners.on_priorities(peer, message, parts)
        elif isinstance(message, Counted):
            self.learners.on_counted(peer, message)
        elif isinstance(message, WriterHello):
            role = role_of(message.name)
            if self._admits(peer, role if role in WRITERS else "actor", message):
                self.writers.on_hello(peer, message, self._incarnation)
        elif isinstance(message, SamplerHello):
            if self._admits(peer, "learner", message):
                self.learners.on_hello(peer, message, self._incarnation)
                self.writers.credit_changed = True
        elif isinstance(message, Present):
            self.writers.on_present(peer)
        elif isinstance(message, Goodbye):
            self.writers.on_goodbye(peer)
        else:
            self._metrics.count("rejected")
            self.socket.offence(peer, "messages that are not meant for replay")

    def _admits(self, peer: bytes, role: str, hello: WriterHello | SamplerHello) -> bool:
        """Checks a greeting; a peer that is not admitted gets the reason. All other messages are accepted only after one."""
        if reason := self.socket.authorise(peer, role, hello.name):
            self._metrics.count("rejected")
        else:
            self.socket.offence(peer, "too many greetings", GREETING)
            reason = mismatch(self._spec, hello, self._shards)
        if reason:
            self.socket.send(peer, Refused(reason))
        return not reason


def mismatch(spec: ExperienceSpec, hello: WriterHello | SamplerHello, shards: int) -> str:
    """The reason why this version, spec or number of shards cannot serve a client; "" if they can."""
    if hello.protocol != PROTOCOL:
        return (
            f"{hello.name} uses protocol {hello.protocol}, replay uses {PROTOCOL}: install the same version of headrace for both"
        )
    if hello.spec_digest != spec.digest:
        return (
            f"{hello.name} has another experience spec ({hello.spec_digest}, replay has {spec.digest}): "
            "start both from the same run folder"
        )
    if isinstance(hello, SamplerHello) and hello.shards != shards:
        return (
            f"{hello.name} was started for {hello.shards} replay shards, here are {shards}: start both from the same run folder"
        )
    return ""
