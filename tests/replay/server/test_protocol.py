"""One writer and replay over a link that loses and doubles messages, while both ends are restarted at any moment."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replay.client.base import SILENCE_SECONDS
from replay.client.writer import ExperienceWriter
from replay.config import ReplayConfig, ReplayProcess
from replay.server.server import ReplayServer
from tests.replay.examples import every_item, make_spec, stream_chunks
from transport.messages.codec import pack, unpack
from transport.metrics import Metrics
from transport.sockets.quarantine import Quarantine

SPEC = make_spec(length=4, stack=1, n_step=1)
CHUNKS = stream_chunks(SPEC, {}, 400)
CONFIG = ReplayConfig(min_size=1, capacity=4_000, samples_per_insert_low=0, samples_per_insert_high=1e9, receive_bytes=1_000_000)
LONG = os.environ.get("HEADRACE_CHAOS", "short") != "short"
Sent = tuple[bytes, list[bytes]]


class Wire:
    """Both directions of a connection; a new one has another name."""

    def __init__(self) -> None:
        self.up: deque[Sent] = deque()
        self.down: deque[Sent] = deque()
        self.peer = b"0"

    def reconnect(self) -> None:
        """What was on its way is lost."""
        self.up.clear()
        self.down.clear()
        self.peer = str(int(self.peer) + 1).encode()


class Ends:
    """What stands in for both sockets."""

    def __init__(self, wire: Wire, server: bool) -> None:
        self.address, self.malformed, self.received_bytes, self.quarantined, self.unread = "", 0, 0, 0, 0
        self.quarantine, self.offences = Quarantine(lambda: 0.0), 0.0
        self._wire, self._server = wire, server

    def receive(self, timeout_seconds: float = 0) -> Any:
        queue = self._wire.up if self._server else self._wire.down
        if not queue:
            return None
        header, parts = queue.popleft()
        return (self._wire.peer, unpack(header), parts) if self._server else (unpack(header), parts)

    def send(self, *arguments: Any) -> bool:
        """(peer, message, parts) or (message, parts)."""
        if self._server and arguments[0] != self._wire.peer:
            return False
        message, *parts = arguments[1:] if self._server else arguments
        queue = self._wire.down if self._server else self._wire.up
        queue.append((pack(message), list(parts[0]) if parts else []))
        return True

    def offence(self, peer: bytes, reason: str, weight: float = 1.0) -> None:
        self.offences += weight >= 1

    def authorise(self, peer: bytes, role: str, name: str) -> str:
        return ""

    def expelled(self) -> Sequence[bytes]:
        return []

    def close(self, linger_seconds: float = 0) -> None:
        """Nothing is open."""


class Protocol(RuleBasedStateMachine):
    """After any history: acknowledged is stored, nothing is stored twice, and no honest writer breaks a rule."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.wire, self.now, self.incarnation, self.next = Wire(), 1000.0, 0, 0
        self.acknowledged = 0  # chunks, of earlier incarnations
        self.begins = [0]  # the first chunk of each incarnation of the writer
        self.server: ReplayServer | None = None
        clock = SimpleNamespace(monotonic=lambda: self.now)
        self.patches: list[Any] = [
            patch("replay.client.writer.Client", lambda address, **more: Ends(self.wire, server=False)),
            patch("replay.client.writer.time", clock),
            patch("replay.server.writers.time", clock),
            patch("replay.table.inbox.time", clock),
            patch("replay.server.server.Server", lambda *a, **k: Ends(self.wire, server=True)),
            patch("replay.server.server.wait", lambda channels, seconds: None),
            patch("replay.log.journal.say", lambda line: None),
        ]
        for each in self.patches:
            each.start()
        self.start_server()
        self.start_writer()

    def start_server(self) -> None:
        self.incarnation += 1
        self.metrics = Metrics()
        self.server = ReplayServer(SPEC, ReplayProcess(0, CONFIG), "", self.incarnation, self.metrics, self.folder / "log")

    def start_writer(self) -> None:
        self.incarnation += 1
        self.writer = ExperienceWriter("", "actor-0", self.incarnation, SPEC, 1)

    @precondition(lambda self: self.writer.has_credit and self.next < len(CHUNKS))
    @rule(count=st.integers(1, 4))
    def insert(self, count: int) -> None:
        while count and self.writer.has_credit and self.next < len(CHUNKS):
            self.writer.insert(CHUNKS[self.next])
            self.next, count = self.next + 1, count - 1

    @rule()
    def serve(self) -> None:
        assert self.server
        self.server.turn(0)

    @rule()
    def poll(self) -> None:
        self.writer.poll()

    @rule(seconds=st.sampled_from([0.1, 1.0, SILENCE_SECONDS + 0.1, 12.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(up=st.booleans(), which=st.integers(0, 5))
    def lose(self, up: bool, which: int) -> None:
        queue = self.wire.up if up else self.wire.down
        if which < len(queue):
            del queue[which]

    @rule(up=st.booleans(), which=st.integers(0, 5))
    def double(self, up: bool, which: int) -> None:
        queue = self.wire.up if up else self.wire.down
        if which < len(queue):
            queue.insert(which, queue[which])

    @precondition(lambda self: self.wire.up)
    @rule()
    def double_the_newest(self) -> None:
        self.wire.up.append(self.wire.up[-1])

    @precondition(lambda self: self.wire.up)
    @rule()
    def lose_the_oldest(self) -> None:
        self.wire.up.popleft()

    @rule()
    def reconnect(self) -> None:
        self.wire.reconnect()

    @rule(orderly=st.booleans())
    def restart_server(self, orderly: bool) -> None:
        """Killed, it has not read what was on its way, and has saved no state."""
        assert self.server
        if orderly:
            self.server.close()
        else:
            self.server.journal._background.close()  # type: ignore[union-attr]
        self.wire.reconnect()
        self.start_server()

    @rule()
    def restart_writer(self) -> None:
        """What it kept is lost, whether it was acknowledged or not."""
        self.acknowledged += self.writer._next_sequence - self.writer.outstanding
        self.next = self.begins[-1] + self.writer._next_sequence
        self.begins.append(self.next)
        self.wire.reconnect()
        self.start_writer()

    @invariant()
    def what_waits_is_bounded(self) -> None:
        if getattr(self, "server", None):
            assert len(self.server.inbox.pending) * SPEC.chunk_bytes <= 3 * CONFIG.receive_bytes  # type: ignore[union-attr]

    @invariant()
    def stored_is_what_was_sent_each_once_and_acknowledged_is_stored(self) -> None:
        if getattr(self, "server", None):
            self.check(self.writer._next_sequence - self.writer.outstanding)

    def check(self, acknowledged: int) -> None:
        assert self.server
        keys, times = np.unique(every_item(self.server.ring)["observation/position"][:, 0].astype(int) // 4, return_counts=True)
        assert (times == 4).all(), "doubled"
        stored = set(keys.tolist())
        first = self.begins[-1]
        assert set(range(first, first + acknowledged)) <= stored, "lost"
        assert max(stored, default=-1) < self.next, "invented"
        ends = self.server.socket
        assert self.metrics.value("overdrawn") == 0 and isinstance(ends, Ends) and ends.offences == 0

    def teardown(self) -> None:
        """Over a link that works again everything arrives."""
        if getattr(self, "server", None) is None:
            return
        assert self.server
        for _ in range(200):
            self.writer.poll()
            self.server.turn(0)
            self.now += 0.1
            if not self.writer.outstanding:
                break
        assert not self.writer.outstanding
        self.check(self.writer._next_sequence)
        self.server.close()
        for each in self.patches:
            each.stop()
        shutil.rmtree(self.folder)


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(
    max_examples=600 if LONG else 40,
    stateful_step_count=60 if LONG else 50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
