"""A proxy that loses, delays and doubles whole messages between DEALERs and a ROUTER."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

import zmq

Parts = list[bytes]
TURN_MS = 5


@dataclass(frozen=True)
class Chances:
    """What may happen to each message of one direction; a delayed one is overtaken by those after it."""

    drop: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    delay_seconds: float = 0.0


class MessageProxy:
    """Binds a ROUTER for the clients and makes a DEALER to the server for each of them, in a thread of its own.

    Between one reading and the next nothing is dropped in silence but by chance: queues have no limit.
    """

    def __init__(self, bind: str, target: str, up: Chances, down: Chances, seed: int = 0) -> None:
        """`up`: towards the server at `target`."""
        self.up, self.down = up, down
        self.seen = {"up": 0, "down": 0}
        self.dropped = {"up": 0, "down": 0}
        self.doubled = {"up": 0, "down": 0}
        self._random = random.Random(seed)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._front = self._socket(zmq.ROUTER)
        self._front.bind(bind)
        self.address = str(self._front.getsockopt_string(zmq.LAST_ENDPOINT))
        self._target = target
        self._backs: dict[bytes, zmq.Socket[bytes]] = {}
        self._late: list[tuple[float, int, Callable[[], object]]] = []
        self._number = count()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="message proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> MessageProxy:
        return self

    def __exit__(self, *failure: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            socket.setsockopt(option, 0)
        return socket

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._front, zmq.POLLIN)
        while not self._stopping.is_set():
            ready = dict(poller.poll(TURN_MS))
            for _ in range(ready.pop(self._front, 0) and 100):
                try:
                    peer, *parts = self._front.recv_multipart(zmq.DONTWAIT)
                except zmq.Again:
                    break
                if peer not in self._backs:
                    self._backs[peer] = self._socket(zmq.DEALER)
                    self._backs[peer].connect(self._target)
                    poller.register(self._backs[peer], zmq.POLLIN)
                self._treat("up", self.up, partial(self._backs[peer].send_multipart, parts))
            for peer, back in self._backs.items():
                while back in ready:
                    try:
                        parts = back.recv_multipart(zmq.DONTWAIT)
                    except zmq.Again:
                        break
                    self._treat("down", self.down, partial(self._front.send_multipart, [peer, *parts]))
            while self._late and self._late[0][0] <= time.monotonic():
                heapq.heappop(self._late)[2]()

    def _treat(self, way: str, chances: Chances, send: Callable[[], object]) -> None:
        self.seen[way] += 1
        if self._random.random() < chances.drop:
            self.dropped[way] += 1
            return
        copies = 2 if self._random.random() < chances.double else 1
        self.doubled[way] += copies - 1
        for _ in range(copies):
            if self._random.random() < chances.delay:
                due = time.monotonic() + self._random.random() * 2 * chances.delay_seconds
                heapq.heappush(self._late, (due, next(self._number), send))
            else:
                send()
