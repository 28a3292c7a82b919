"""The actors' end of the weights' way: it follows the newest that the learner announces. No torch here.

What arrives is checked by length, sha256 and finiteness, and adopted whole or not at all.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from learner.weights.checkpoint import CheckpointError, unpack
from transport.messages import Announce, FetchWeights, Weights
from transport.sockets.announcements import Listener
from transport.sockets.channel import wait
from transport.sockets.client import Client
from transport.sockets.frames import FRAME_BYTES, piece_bytes
from transport.sockets.keys import Keys

FETCH_AGAIN_SECONDS = 2.0
MESSAGES_PER_TURN = 64
HEADER_BYTES_PER_TENSOR = 512  # of a payload, beside the numbers: more than any name and shape takes


class Follows(Protocol):
    """What is kept at the newest weights."""

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """Those in use."""

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Takes them up whole or not at all. Raises CheckpointError."""


class WeightFollower:
    """Keeps an inference at the newest weights. `poll` never waits."""

    def __init__(self, announce_address: str, serve_address: str, inference: Follows, keys: Keys | None = None) -> None:
        """Connects in the background and asks for the newest weights."""
        self._listener = Listener(announce_address, keys, "weights")
        self._inference = inference
        own = inference.weights.values()
        self._most_bytes = sum(value.nbytes + HEADER_BYTES_PER_TENSOR for value in own) + FRAME_BYTES
        self._client = Client(serve_address, piece_bytes(self._most_bytes), keys=keys, endpoint="payload")
        self._incarnation = -1
        self.version = -1  # of the weights in use; -1 before the first
        self.newest = -1  # the highest version announced
        self.rejected = 0
        self._asked = 0.0

    @property
    def lag(self) -> int:
        """Versions that the weights in use are behind the newest announced."""
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
        """Adopts newer weights if they have arrived; asks for them if they were announced. True when the weights changed."""
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
            self._inference.load(unpack(payload))
        except CheckpointError:
            self.rejected += 1
            return False
        self._incarnation, self.version = message.incarnation, message.version
        self.newest = max(self.newest, self.version)
        return True
