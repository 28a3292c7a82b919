"""Serves weights: announces each version and sends the newest to each reader that requests it. No torch.

The announcement is small and may be lost; it is repeated each second. Each reader fetches the payload itself.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from transport.messages.weights import Announce, FetchWeights, Weights
from transport.sockets.channel import Shared, cut, shared, wait
from transport.sockets.keys import Keys
from transport.sockets.limits import ResourceLimits
from transport.sockets.server import REQUEST_BYTES, Announcer, Server

ANNOUNCE_SECONDS = 1.0
TURN_SECONDS = 0.005
SEND_AGAIN_SECONDS = 30.0  # before a reader gets the same version again: a repeated request means a slow connection
PAYLOADS_PER_READER = 2  # queued: a reader that requests and never reads must not fill the server's memory
MESSAGES_PER_TURN = 64
UNREAD = 0.1  # weight of the offence of requesting again while the answer is being sent


class Payload(NamedTuple):
    """Serialised weights and their announcement."""

    announce: Announce
    frames: list[Shared]  # in memory once, however many readers fetch them


def payload_of(incarnation: int, version: int, sha256: str, data: bytes) -> Payload:
    """`incarnation`: of the learner that has made these weights."""
    return Payload(Announce(incarnation, version, len(data), sha256), shared(cut(data)))


class WeightServer:
    """Announces and serves the newest weights in its own thread, so that a slow reader slows no other work."""

    def __init__(self, announce_address: str, serve_address: str, keys: Keys | None = None) -> None:
        """Binds both sockets. Raises OSError."""
        self._announcer = Announcer(announce_address, keys, "weights")
        self._server = Server(serve_address, REQUEST_BYTES, PAYLOADS_PER_READER, MESSAGES_PER_TURN, keys, "payload")
        self.addresses = (self._announcer.address, self._server.address)
        self.payloads = 0  # sent so far; the thread writes it
        self._offered: Callable[[], Payload | None] | None = None  # replaced at once; the thread reads it
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="weights", daemon=True)
        self._thread.start()

    def offer(self, make: Callable[[], Payload | None]) -> None:
        """Serves what `make` returns from now on. It is called in the thread; None: what is served already stays."""
        self._offered = make

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._announcer.close()
        self._server.close()

    def _serve(self) -> None:
        payload: Payload | None = None
        made: Callable[[], Payload | None] | None = None
        sent: dict[bytes, float] = {}  # when each reader was last sent this version
        announced, next_announce = None, 0.0
        limits = ResourceLimits(self.addresses)
        while not self._stopping.is_set():
            wait([self._server], TURN_SECONDS)
            limits.turn()
            self._announcer.admit()
            if (make := self._offered) is not None and make is not made:
                made = make
                payload = make() or payload
                sent.clear()
            if payload is None:
                continue
            announce = payload.announce
            if announce != announced or time.monotonic() >= next_announce:
                self._announcer.announce(announce)
                announced, next_announce = announce, time.monotonic() + ANNOUNCE_SECONDS
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
                        self.payloads += 1
                    else:
                        self._server.offence(peer, "requests for weights whose answers it does not read", UNREAD)
