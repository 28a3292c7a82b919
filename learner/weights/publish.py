"""Publishes the policy's weights: announces each version and serves the newest.

The announcement is small and may be lost; it is repeated each second. Each reader fetches the payload itself. Versions only
grow, over all incarnations of a run's learner.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from torch import Tensor, nn

from learner.devices.capabilities import make_current
from learner.parallel.group import Group
from learner.updates.base import Update
from learner.weights.checkpoint import CheckpointError, pack
from transport.lifetime import Lifetime, say
from transport.messages import Announce, FetchWeights, Weights
from transport.run_dir import RunDir, write_atomically
from transport.sockets.announcements import REQUEST_BYTES, Announcer
from transport.sockets.channel import wait
from transport.sockets.frames import Shared, cut, shared
from transport.sockets.keys import Keys
from transport.sockets.limits import ResourceLimits
from transport.sockets.server import Server

ANNOUNCE_SECONDS = 1.0
TURN_SECONDS = 0.005
SEND_AGAIN_SECONDS = 30.0  # before a reader gets the same version again: a repeated request means a slow connection
PAYLOADS_PER_READER = 2  # queued: a reader that requests and never reads must not fill the learner's memory
MESSAGES_PER_TURN = 64
UNREAD = 0.1  # weight of the offence of requesting again while the answer is being sent


class Payload(NamedTuple):
    """Serialised weights and their announcement."""

    announce: Announce
    frames: list[Shared]  # in memory once, however many readers fetch them


class WeightPublisher:
    """Announces and serves the newest weights in its own thread, so that a slow reader never slows the learner."""

    def __init__(self, announce_address: str, serve_address: str, incarnation: int, keys: Keys | None = None) -> None:
        """Binds both sockets. Raises OSError."""
        self._announcer = Announcer(announce_address, keys, "weights")
        self._server = Server(serve_address, REQUEST_BYTES, PAYLOADS_PER_READER, MESSAGES_PER_TURN, keys, "payload")
        self.addresses = (self._announcer.address, self._server.address)
        self._incarnation = incarnation
        self._given: tuple[int, dict[str, Tensor]] | None = None  # replaced at once; the thread reads it
        self.refused = 0  # versions not announced because they were not finite; the thread writes this and the next
        self.refused_version = -1  # the newest of them
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="weights", daemon=True)
        self._thread.start()

    def publish(self, module: nn.Module, version: int) -> None:
        """Makes the module's parameters and buffers the newest weights. `version` must grow from call to call.

        Copies them on their device and returns at once: the thread waits for the device, serialises them and computes the sha256.
        """
        self._given = (version, {name: value.detach().clone() for name, value in module.state_dict().items()})

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._announcer.close()
        self._server.close()

    def _serve(self) -> None:
        payload: Payload | None = None
        sent: dict[bytes, float] = {}  # when each reader was last sent this version
        packed, announced, next_announce = -1, -1, 0.0
        limits = ResourceLimits(self.addresses)
        while not self._stopping.is_set():
            wait([self._server], TURN_SECONDS)
            limits.turn()
            self._announcer.admit()
            given = self._given
            if given is not None and given[0] != packed:
                packed = given[0]
                payload = self._pack(*given) or payload
                sent.clear()
            if payload is None:
                continue
            announce = payload.announce
            if announce.version != announced or time.monotonic() >= next_announce:
                self._announcer.announce(announce)
                announced, next_announce = announce.version, time.monotonic() + ANNOUNCE_SECONDS
            for _ in range(MESSAGES_PER_TURN):
                arrival = self._server.receive()
                if arrival is None:
                    break
                peer, message, _ = arrival
                if not isinstance(message, FetchWeights):
                    self._server.offence(peer, "messages that a server of weights does not take")
                elif time.monotonic() > sent.get(peer, -math.inf) + SEND_AGAIN_SECONDS:
                    answer = Weights(announce.incarnation, announce.version, announce.sha256)
                    if self._server.send(peer, answer, payload.frames):
                        sent[peer] = time.monotonic()
                    else:
                        self._server.offence(peer, "requests for weights whose answers it does not read", UNREAD)

    def _pack(self, version: int, weights: dict[str, Tensor]) -> Payload | None:
        """None for weights that are not finite, which are logged and counted: the last finite ones stay published."""
        try:
            make_current(next(iter(weights.values())).device)
            data = pack(weights)
        except CheckpointError as error:
            self.refused, self.refused_version = self.refused + 1, version
            say(f"policy v{version} is not published: {error}")
            return None
        announce = Announce(self._incarnation, version, len(data), hashlib.sha256(data).hexdigest())
        return Payload(announce, shared(cut(data)))


def announced(run_dir: RunDir) -> int:
    """The highest version that any incarnation of this run's learner has announced; -1 before the first."""
    try:
        return int(run_dir.announced.read_text())
    except (OSError, ValueError):
        return -1


class Publication:
    """Publishes the policy of an update, version after version. In a group only rank 0 has a publisher."""

    def __init__(self, update: Update, version: int, run_dir: RunDir, life: Lifetime, group: Group) -> None:
        """Publishes the current policy as `version`, then writes the endpoints. Raises OSError."""
        self._update, self._run_dir, self._group, self._metrics = update, run_dir, group, life.metrics
        self.version = version
        bind = run_dir.bind_address
        self._publisher = None if group.rank else WeightPublisher(bind("weights"), bind("payload"), life.incarnation, life.keys)
        self._publish()
        if self._publisher:
            run_dir.write_endpoint("payload", self._publisher.addresses[1])
            run_dir.write_endpoint("weights", self._publisher.addresses[0])

    def publish(self) -> None:
        """Publishes the current policy as the next version."""
        self.version += 1
        self._publish()

    @property
    def refused_version(self) -> int:
        """The newest version that was not announced because its weights were not finite; -1: none."""
        self._metrics.gauge("refused_weights", self._publisher.refused if self._publisher else 0)
        return self._publisher.refused_version if self._publisher else -1

    def close(self) -> None:
        if self._publisher:
            self._publisher.close()

    def _publish(self) -> None:
        self._group.equalise(buffer for module in self._update.modules.values() for buffer in module.buffers())
        self._metrics.gauge("policy_version", self.version)
        if self._publisher is None:
            return
        with suppress(OSError):  # on a full disk: after a crash versions may repeat, but under another incarnation
            write_atomically(self._run_dir.announced, str(self.version).encode())
        self._publisher.publish(self._update.modules["policy"], self.version)
