"""The learner's end of the weights' way: it announces versions and serves the newest.

The announcement is small and may be missed; it is repeated each second. The payload is fetched by each reader that wants it.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from typing import NamedTuple

from torch import Tensor, nn

from learner.weights.checkpoint import CheckpointError, pack
from transport.lifetime import say
from transport.messages import Announce, FetchWeights, Weights
from transport.sockets.announcements import REQUEST_BYTES, Announcer
from transport.sockets.channel import wait
from transport.sockets.frames import Shared, cut, shared
from transport.sockets.keys import Keys
from transport.sockets.limits import ResourceLimits
from transport.sockets.server import Server

ANNOUNCE_SECONDS = 1.0
TURN_SECONDS = 0.005
SEND_AGAIN_SECONDS = 30.0  # the same version over the same connection: a reader that asks again meanwhile has a slow line
PAYLOADS_PER_READER = 2  # a reader that asks and never reads must not fill the learner's memory
MESSAGES_PER_TURN = 64
UNREAD = 0.1  # of an offence: to ask again while the answer is under way


class Packed(NamedTuple):
    """Weights as they travel, and what is said of them."""

    announce: Announce
    frames: list[Shared]  # held once, however many readers are behind


class WeightPublisher:
    """Announces and serves the newest weights from a thread of its own, so that no reader, however slow, slows the learner."""

    def __init__(self, announce_address: str, serve_address: str, incarnation: int, keys: Keys | None = None) -> None:
        """Binds both sockets. Raises OSError."""
        self._announcer = Announcer(announce_address, keys, "weights")
        self._server = Server(serve_address, REQUEST_BYTES, PAYLOADS_PER_READER, MESSAGES_PER_TURN, keys, "payload")
        self.addresses = (self._announcer.address, self._server.address)
        self._incarnation = incarnation
        self._given: tuple[int, dict[str, Tensor]] | None = None  # replaced as one, read by the thread
        self.refused = 0  # versions that were not announced since they were not finite; written by the thread, as the next
        self.refused_version = -1  # the newest of them
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="weights", daemon=True)
        self._thread.start()

    def publish(self, module: nn.Module, version: int) -> None:
        """Makes the module's parameters and buffers the newest weights. `version` must grow from call to call.

        Copies them where they are and waits for nothing: the thread packs them, which takes a device's queue and a checksum.
        """
        self._given = (version, {name: value.detach().clone() for name, value in module.state_dict().items()})

    def close(self) -> None:
        """Ends the thread and closes the sockets."""
        self._stopping.set()
        self._thread.join()
        self._announcer.close()
        self._server.close()

    def _serve(self) -> None:
        packed: Packed | None = None
        sent: dict[bytes, float] = {}  # when each reader was last sent this version
        looked_at, announced, next_announce = -1, -1, 0.0
        guard = ResourceLimits(self.addresses)
        while not self._stopping.is_set():
            wait([self._server], TURN_SECONDS)
            guard.turn()
            self._announcer.admit()
            given = self._given
            if given is not None and given[0] != looked_at:
                looked_at = given[0]
                packed = self._packed(*given) or packed
                sent.clear()
            if packed is None:
                continue
            announce = packed.announce
            if announce.version != announced or time.monotonic() >= next_announce:
                self._announcer.announce(announce)
                announced, next_announce = announce.version, time.monotonic() + ANNOUNCE_SECONDS
            for _ in range(MESSAGES_PER_TURN):
                arrival = self._server.receive()
                if arrival is None:
                    break
                peer, message, _ = arrival
                if not isinstance(message, FetchWeights):
                    self._server.offence(peer, "messages that are not meant for who serves weights")
                elif time.monotonic() > sent.get(peer, -math.inf) + SEND_AGAIN_SECONDS:
                    answer = Weights(announce.incarnation, announce.version, announce.sha256)
                    if self._server.send(peer, answer, packed.frames):
                        sent[peer] = time.monotonic()
                    else:
                        self._server.offence(peer, "requests for weights that it does not read", UNREAD)

    def _packed(self, version: int, weights: dict[str, Tensor]) -> Packed | None:
        """None, told and counted, for weights that are not finite: the last good ones stay out."""
        try:
            payload = pack(weights)
        except CheckpointError as error:
            self.refused, self.refused_version = self.refused + 1, version
            say(f"policy v{version} is not published: {error}")
            return None
        announce = Announce(self._incarnation, version, len(payload), hashlib.sha256(payload).hexdigest())
        return Packed(announce, shared(cut(payload)))
