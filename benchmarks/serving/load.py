"""Clients of a policy server, all in one thread: raw sockets, and requests that are made once, so that they take little time."""

from __future__ import annotations

import base64
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

RECEIVED = 65536
MASK = bytes(4)  # leaves the content as it is


class Load(NamedTuple):
    """What clients have seen."""

    requests: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float


Answer = Callable[[bytes], bool]  # whether an answer is right


def over_http(port: int, token: str, body: bytes) -> tuple[bytes, bytes]:
    """What opens a connection, and a request on it."""
    head = (
        f"POST /act HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return b"", head.encode() + body


def over_websocket(port: int, token: str, body: bytes) -> tuple[bytes, bytes]:
    key = base64.b64encode(bytes(16)).decode()
    opening = (
        f"GET /act HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\nConnection: Upgrade\r\n"
        f"Upgrade: websocket\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    size = struct.pack("!B", 0x80 | len(body)) if len(body) < 126 else struct.pack("!BH", 0x80 | 126, len(body))
    return opening.encode(), b"\x81" + size + MASK + body


class Clients:
    """Connections that each have one request under way."""

    def __init__(self, port: int, count: int, opening: bytes, request: bytes, right: Answer) -> None:
        self._request, self._right = request, right
        self._selector = selectors.DefaultSelector()
        self._free: deque[socket.socket] = deque()
        self._asked: dict[socket.socket, float] = {}
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", port))
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if opening:
                one.sendall(opening)
                answer = b""
                while b"\r\n\r\n" not in answer:
                    answer += one.recv(RECEIVED)
                assert answer.startswith(b"HTTP/1.1 101"), answer
            self._selector.register(one, selectors.EVENT_READ)
            self._free.append(one)

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def at_full_speed(self, seconds: float) -> Load:
        """Each client asks again at once."""
        until, took = time.perf_counter() + seconds, list[float]()
        began = time.perf_counter()
        while time.perf_counter() < until:
            while self._free:
                self._ask(time.perf_counter())
            took += self._answers(1.0)
        passed = time.perf_counter() - began
        self._finish(took)
        return _load(took, passed)

    def at(self, rate: float, seconds: float) -> Load:
        """Requests are due at even times, whether or not the one before is answered; what waits for a client counts as well."""
        began, took, sent = time.perf_counter(), list[float](), 0
        total = int(rate * seconds)
        while len(took) < total:
            now = time.perf_counter()
            while sent < total and self._free and (due := began + sent / rate) <= now:
                self._ask(due)
                sent += 1
            wait = began + sent / rate - time.perf_counter() if sent < total and self._free else 1.0
            took += self._answers(max(wait, 0.0))
        return _load(took, time.perf_counter() - began)

    def _ask(self, since: float) -> None:
        one = self._free.popleft()
        self._asked[one] = since
        one.sendall(self._request)

    def _answers(self, wait: float) -> list[float]:
        took = []
        for key, _ in self._selector.select(wait):
            one: socket.socket = key.fileobj  # type: ignore[assignment]
            answer = one.recv(RECEIVED)
            while not answer.endswith(b"}"):
                more = one.recv(RECEIVED)
                assert more, f"the server has closed a connection after {answer!r}"
                answer += more
            assert self._right(answer), answer
            took.append(time.perf_counter() - self._asked.pop(one))
            self._free.append(one)
        return took

    def _finish(self, took: list[float]) -> None:
        while self._asked:
            took += self._answers(1.0)


def _load(took: list[float], passed: float) -> Load:
    p50, p99 = np.percentile(np.array(took), [50, 99]) * 1000
    return Load(len(took), len(took) / passed, float(p50), float(p99))
