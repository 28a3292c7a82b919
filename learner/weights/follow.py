"""Follows the newest weights that the learner announces; actors, relays and the evaluator use it. No torch.

Weights are adopted only if their length, their sha256 and their values (all finite) are right: all of them or none.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from learner.weights.checkpoint import CheckpointError, unpack
from transport.messages.weights import Announce, FetchWeights, Weights
from transport.metrics import Metrics, Record
from transport.sockets.channel import FRAME_BYTES, Channel, piece_bytes, wait
from transport.sockets.client import Client, Listener
from transport.sockets.keys import Keys

FETCH_AGAIN_SECONDS = 2.0
MESSAGES_PER_TURN = 64
HEADER_BYTES_PER_TENSOR = 512  # upper bound of what name and shape take in a payload


class Follows(Protocol):
    """An inference, which adopts the weights."""

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """The weights in use."""

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Adopts all weights, or none and raises CheckpointError."""


class WeightsInUse(Protocol):
    """Knows how new the weights in use are: a PayloadFollower, or the connection to an inference process."""

    version: int
    rejected: int

    @property
    def lag(self) -> int: ...


def gauge(metrics: Metrics, follower: WeightsInUse) -> None:
    """Records how new the weights in use are."""
    metrics.gauge("policy_version", follower.version)
    metrics.gauge("lag", follower.lag)
    metrics.gauge("rejected_weights", follower.rejected)


def describe(record: Record) -> str:
    """The same, for a line of the log."""
    return f"policy v{record.get('policy_version', -1):.0f} lag {record.get('lag', 0):.0f}"


def describe_rejected(record: Record) -> str:
    """How many weights were rejected, as the end of a line of the log; empty where none were."""
    return f" · rejected {record['rejected_weights']:,.0f}" if record.get("rejected_weights") else ""


class PayloadFollower:
    """Fetches the newest weights as bytes, which `adopt` takes or refuses. poll() never waits."""

    def __init__(
        self,
        announce_address: str,
        serve_address: str,
        adopt: Callable[[Weights, bytes], None],
        most_bytes: int,
        keys: Keys | None = None,
    ) -> None:
        """Connects in the background and requests the newest weights. `adopt(message, payload)` raises CheckpointError for bytes
        that are not the weights of this network; `most_bytes`: an upper bound of these."""
        self._listener = Listener(announce_address, keys, "weights")
        self._take = adopt
        self._most_bytes = most_bytes
        self._client = Client(serve_address, piece_bytes(most_bytes), keys=keys, endpoint="payload")
        self._incarnation = -1
        self.version = -1  # of the weights in use; -1 before the first
        self.newest = -1  # the highest version announced
        self.rejected = 0
        self._asked = 0.0
        self._early = False  # the request was sent before its version was announced, so it may have come too early

    @property
    def lag(self) -> int:
        """Versions that the weights in use are behind the newest announced."""
        return max(self.newest - self.version, 0)

    def expect(self, version: int) -> bool:
        """Requests `version`, which has been published but perhaps not announced here yet. True until it has been adopted."""
        if self.version >= version:
            return False
        self._early |= self.newest < version
        self._ask()
        return True

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The sockets that poll() reads."""
        return self._client, self._listener

    def wait(self, timeout_seconds: float) -> None:
        """Waits until a message has arrived, or the timeout is over."""
        wait(self.channels, timeout_seconds)

    def poll(self) -> bool:
        """Adopts newer weights that have arrived, and requests those that were announced. True when the weights changed."""
        announce = self._listener.newest()
        if isinstance(announce, Announce):
            self.newest = announce.version
            if (announce.incarnation, announce.version) != (self._incarnation, self.version):
                if self._early:
                    self._asked, self._early = 0.0, False
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
                raise CheckpointError("more bytes than the network's weights take")
            payload = b"".join(parts)
            if hashlib.sha256(payload).hexdigest() != message.sha256:
                raise CheckpointError("sha256 differs")
            self._take(message, payload)
        except CheckpointError:
            self.rejected += 1
            return False
        self._incarnation, self.version = message.incarnation, message.version
        self.newest = max(self.newest, self.version)
        if self.newest > self.version:  # announced while these were on their way
            self._ask()
        return True


class WeightFollower(PayloadFollower):
    """Keeps an inference at the newest weights."""

    def __init__(self, announce_address: str, serve_address: str, inference: Follows, keys: Keys | None = None) -> None:
        own = inference.weights.values()
        most_bytes = most_payload_bytes(sum(value.nbytes for value in own), len(own))

        def load(_: Weights, payload: bytes) -> None:
            inference.load(unpack(payload))

        super().__init__(announce_address, serve_address, load, most_bytes, keys)


def most_payload_bytes(weights_bytes: int, tensors: int) -> int:
    """An upper bound of the payload's bytes, for weights of this number and these bytes."""
    return weights_bytes + tensors * HEADER_BYTES_PER_TENSOR + FRAME_BYTES
