"""The replay server: one thread that owns all experience and one socket for everyone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from replay.config import ReplayConfig
from replay.server.item_table import Items
from replay.server.learners import Serving
from replay.server.rollout_queue import Rollouts
from replay.server.writers import Writers
from replay.table.base import Source
from replay.table.table import Table
from transport.compression import chunk_wire_bytes
from transport.experience import ExperienceSpec
from transport.messages import Goodbye, Insert, Present, PriorityUpdate, Refused, SampleRequest, SamplerHello, WriterHello
from transport.metrics import Metrics, Record
from transport.sockets.channel import QUEUE_MESSAGES, Server, wait
from transport.sockets.keys import Keys

HOLD_SECONDS = 0.5  # how often those who wait for the limiter are told that they do
MESSAGES_PER_TURN = 64
LEAST_QUEUE = 64  # messages of one peer that may wait to be read: more than credit ever allows of large chunks
COUNTERS = ("inserted_steps", "inserted_chunks", "sampled_items", "duplicates", "gaps", "rejected", "stale_priorities")


class ReplayServer:
    """Takes chunks from actors, serves batches to the learner. Call `turn` for ever."""

    def __init__(
        self,
        spec: ExperienceSpec,
        config: ReplayConfig,
        seed: int,
        incarnation: int,
        address: str,
        metrics: Metrics,
        folder: Path | None = None,
        going_on: Callable[[], bool] = lambda: True,
        lent: int = 0,
        keys: Keys | None = None,
    ) -> None:
        """Restores what `folder` holds, if one is given (rollouts are not logged); then binds.

        `going_on` is called all the time while it restores; `lent`: items, or chunks of rollouts, in the learner's slots. Raises
        ValueError when the configuration holds no chunk or the folder is another run's, RestoreStopped when not `going_on`,
        OSError when the address cannot be bound.
        """
        self.source: Source
        if spec.unit == "rollouts":
            self.source = Rollouts(spec, config, metrics, lent)
        else:
            self.source = Items(spec, config, seed, metrics, folder, going_on, lent)
        self._metrics = metrics
        chunk_bytes = chunk_wire_bytes(spec)
        part_bytes = max(chunk_bytes, 1 << 20)
        receive_queue = min(max(config.receive_bytes // part_bytes, LEAST_QUEUE), QUEUE_MESSAGES)
        self._server = Server(address, part_bytes, receive_queue=receive_queue, keys=keys, door="replay", most_bytes=chunk_bytes)
        self.address = self._server.address
        self._writers = Writers(spec, self.source, self._server, metrics, incarnation)
        self._serving = Serving(spec, self.source, self._server, metrics, incarnation, lent)
        self._next_hold = 0.0
        metrics.begin_at(dict.fromkeys(COUNTERS, 0.0) | self.source.counters)

    @property
    def table(self) -> Table:
        """Where items lie; rollouts have none."""
        assert isinstance(self.source, Items)
        return self.source.table

    def turn(self, timeout_seconds: float) -> None:
        """Reads what has come, inserts and samples as far as it may, answers; waits at most `timeout_seconds` for work."""
        with self._metrics.phase(self._idle_phase()):
            if not self.source.pending or self.source.holds:
                wait([self._server], timeout_seconds)
        with self._metrics.phase("busy"):
            for _ in range(MESSAGES_PER_TURN):
                arrival = self._server.receive()
                if arrival is None:
                    break
                self._take(*arrival)
            self.source.insert()
            self._writers.acknowledge()
            self._serving.serve()
            self._writers.acknowledge()
            if time.monotonic() >= self._next_hold:
                self._next_hold = time.monotonic() + HOLD_SECONDS
                self._writers.reassure()
                self._serving.reassure()
            self._writers.share_credit()
            for peer in self._server.expelled():
                self._writers.quarantine(peer)
                self._serving.quarantine(peer)
            self.source.turn(self._counters)

    def close(self) -> None:
        """Closes the socket and the learner's memory; returns when everything is on disk."""
        self._serving.close()
        self._server.close()
        self.source.close(self._counters)

    def measure(self) -> None:
        """Sets the gauges that change all the time."""
        self.source.measure()
        self._writers.measure()
        self._metrics.gauge("malformed", self._server.malformed)
        self._metrics.gauge("impostors", self._server.impostors)
        self._metrics.gauge("handshakes_failed", self._server.handshakes_failed)
        self._metrics.gauge("quarantined", self._server.quarantined)
        self._metrics.gauge("unread", self._server.unread)
        self._metrics.gauge("received_bytes", self._server.received_bytes)

    def _counters(self) -> Record:
        return {name: self._metrics.value(name) for name in COUNTERS}

    def _idle_phase(self) -> str:
        # Waiting has a reason, and the bottleneck is told from it. Chunks may wait because their batch is not complete.
        if self._serving.awaited:
            return "sample_hold"
        if self.source.pending:
            return "insert_hold"
        return "idle"

    def _take(self, peer: bytes, message: object, parts: list[bytes]) -> None:
        """Handles a message. Whatever one can make this process stumble over costs its sender."""
        try:
            self._handle(peer, message, parts)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            self._metrics.count("rejected")
            self._server.offence(peer, "a message that cannot be dealt with")

    def _handle(self, peer: bytes, message: object, parts: list[bytes]) -> None:
        if isinstance(message, Insert):
            self._writers.on_insert(peer, message, parts)
        elif isinstance(message, SampleRequest):
            self._serving.on_request(peer, message, parts)
        elif isinstance(message, PriorityUpdate):
            self._serving.on_priorities(peer, message, parts)
        elif isinstance(message, WriterHello):
            if self._is_itself(peer, "actor", message.name):
                self._writers.on_hello(peer, message)
        elif isinstance(message, SamplerHello):
            if self._is_itself(peer, "learner", message.name):
                self._serving.on_hello(peer, message)
                self._writers.share_credit_soon()
        elif isinstance(message, Present):
            self._writers.on_present(peer)
        elif isinstance(message, Goodbye):
            self._writers.on_goodbye(peer)
        else:
            self._metrics.count("rejected")
            self._server.offence(peer, "messages that are not meant for replay")

    def _is_itself(self, peer: bytes, role: str, name: str) -> bool:
        """Whether who greets is of that role and name. All else is taken from those alone who have greeted."""
        if not (reason := self._server.vouch(peer, role, name)):
            return True
        self._metrics.count("rejected")
        self._server.send(peer, Refused(reason))
        return False
