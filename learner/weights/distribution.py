"""Weights on their way: the learner publishes versions, whoever acts follows the newest.

The announcement is small and may be missed; it is repeated each second. The payload is fetched by who wants it, checked by
length, sha256 and finiteness, and adopted whole or not at all.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from learner.weights.checkpoint import CheckpointError, load_into, pack, unpack
from transport.lifetime import say
from transport.messages import Announce, FetchWeights, Weights
from transport.sockets.channel import (
    FRAME_BYTES,
    REQUEST_BYTES,
    Announcer,
    Client,
    Listener,
    Server,
    Shared,
    cut,
    piece_bytes,
    shared,
    wait,
)
from transport.sockets.keys import Keys
from transport.sockets.limits import Guard

ANNOUNCE_SECONDS = 1.0
FETCH_AGAIN_SECONDS = 2.0
TURN_SECONDS = 0.005
SEND_AGAIN_SECONDS = 30.0  # the same version over the same connection: who asks again meanwhile has a slow line
PAYLOADS_PER_READER = 2  # who asks and never reads must not fill the learner's memory
MESSAGES_PER_TURN = 64
UNREAD = 0.1  # of an offence: to ask again while the answer is under way
HEADER_BYTES_PER_TENSOR = 512  # of a payload, beside the numbers: more than any name and shape takes


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
        guard = Guard(self.addresses)
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


class WeightFollower:
    """Keeps a module at the newest weights. `poll` never waits."""

    def __init__(self, announce_address: str, serve_address: str, module: nn.Module, keys: Keys | None = None) -> None:
        """Connects in the background and asks for whatever is newest."""
        self._listener = Listener(announce_address, keys, "weights")
        self._module = module
        own = module.state_dict().values()
        self._most_bytes = sum(value.numel() * value.element_size() + HEADER_BYTES_PER_TENSOR for value in own) + FRAME_BYTES
        self._client = Client(serve_address, piece_bytes(self._most_bytes), keys=keys, door="payload")
        self._incarnation = -1
        self.version = -1  # of the weights in the module; -1 before the first
        self.newest = -1  # the highest version announced
        self.rejected = 0
        self._asked = 0.0

    @property
    def lag(self) -> int:
        """Versions that the module is behind the newest announced."""
        return max(self.newest - self.version, 0)

    def expect(self, version: int) -> bool:
        """Asks for weights that are known to be out though not announced here yet. True while there are none so new."""
        if self.version >= version:
            return False
        self._ask()
        return True

    def wait(self, timeout_seconds: float) -> None:
        """Until something has come, at most so long."""
        wait([self._client, self._listener], timeout_seconds)

    def poll(self) -> bool:
        """Adopts newer weights if they have arrived; asks for them if they were announced. True when the module changed."""
        announce = self._listener.newest()
        if isinstance(announce, Announce):
            self.newest = announce.version
            if (announce.incarnation, announce.version) != (self._incarnation, self.version):
                self._ask()
        elif self.version < 0:
            self._ask()
        changed = False
        for _ in range(MESSAGES_PER_TURN):
            arrival = self._client.receive()
            if arrival is None:
                break
            message, parts = arrival
            if isinstance(message, Weights):
                changed |= self._adopt(message, parts)
        return changed

    def close(self) -> None:
        """Closes both sockets."""
        self._listener.close()
        self._client.close()

    def _ask(self) -> None:
        if time.monotonic() - self._asked > FETCH_AGAIN_SECONDS or self._asked == 0.0:
            self._asked = time.monotonic()
            self._client.send(FetchWeights())

    def _adopt(self, message: Weights, parts: list[bytes]) -> bool:
        self._asked = 0.0
        if message.incarnation == self._incarnation and message.version <= self.version:
            return False
        try:
            if sum(map(len, parts)) > self._most_bytes:
                raise CheckpointError("more bytes than the network has")
            payload = b"".join(parts)
            if hashlib.sha256(payload).hexdigest() != message.sha256:
                raise CheckpointError("sha256 differs")
            weights: dict[str, np.ndarray] = unpack(payload)
            load_into(self._module, weights)
        except CheckpointError:
            self.rejected += 1
            return False
        self._incarnation, self.version = message.incarnation, message.version
        self.newest = max(self.newest, self.version)
        return True
