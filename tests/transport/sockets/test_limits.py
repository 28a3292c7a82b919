"""ResourceLimits closes the connections of a process when memory or descriptors run out, and nothing else."""

from __future__ import annotations

import errno
import mmap
import os
import socket
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from transport.sockets import limits
from transport.sockets.limits import MARGIN_BYTES, ResourceLimits, close_connections, raise_descriptor_limit, resident_bytes
from transport.system import release_memory

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ResourceLimits works on Linux only")


class Listener:
    """A listening socket, over TCP or over ipc in a folder, and its connections."""

    def __init__(self, folder: str = "") -> None:
        if folder:
            self.listening = socket.socket(socket.AF_UNIX)
            self.listening.bind(f"{folder}/socket")
            self.listening.listen()
            self.address = f"ipc://{folder}/socket"
        else:
            self.listening = socket.create_server(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{self.listening.getsockname()[1]}"
        self.clients: list[socket.socket] = []
        self.accepted: list[socket.socket] = []

    def connect(self, count: int) -> None:
        """Connects `count` clients and accepts them."""
        for _ in range(count):
            client = socket.socket(self.listening.family)
            client.connect(self.listening.getsockname())
            client.settimeout(10)
            self.clients.append(client)
            self.accepted.append(self.listening.accept()[0])

    def close(self) -> None:
        for each in (self.listening, *self.clients, *self.accepted):
            each.close()


@pytest.fixture(params=["tcp", "ipc"])
def listener(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    made = Listener(str(tmp_path_factory.mktemp("d")) if request.param == "ipc" else "")
    yield made
    made.close()


def test_all_connections_to_an_address_are_closed_no_others_and_clients_can_connect_again(listener: Listener) -> None:
    other = Listener()
    try:
        other.connect(1)
        listener.connect(3)
        before, rounds = len(os.listdir("/proc/self/fd")), 50
        assert [close_connections(listener.address) for _ in range(rounds)] == [3] * rounds, "until their owner closes them"
        # A leak is one for each round, at least. Some few come and go by the threads of other tests in this process.
        assert len(os.listdir("/proc/self/fd")) < before + rounds / 2
        assert [client.recv(1) for client in listener.clients] == [b""] * 3
        listener.connect(1)
        for each in (listener, other):
            each.clients[-1].sendall(b"x")
            assert each.accepted[-1].recv(1) == b"x"
    finally:
        other.close()


def test_connections_are_found_when_no_descriptor_is_free(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(path: str) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    listener.connect(2)
    monkeypatch.setattr(limits.os, "listdir", none_left)
    assert close_connections(listener.address) == 2


def test_connections_are_closed_when_half_of_all_descriptors_are_in_use(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    resource_limits = ResourceLimits([listener.address], report=lines.append)
    listener.connect(2)
    resource_limits.turn()
    assert not lines
    monkeypatch.setattr(limits, "lowest_free_descriptor", lambda: raise_descriptor_limit() // 2 + 1)
    resource_limits.turn()
    assert lines == [
        "half of all file descriptors were in use: closed all 2 connections; the processes of this run connect again"
    ]


Moments = list[tuple[float, int]]
Follow = Callable[[Moments], tuple[list[int], list[float]]]
NEED = 1 << 30


@pytest.fixture
def follow(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """Plays (time, bytes in use); returns the number of lines after each moment, and the times at which memory was released."""

    def play(moments: Moments) -> tuple[list[int], list[float]]:
        lines: list[str] = []
        released: list[float] = []
        monkeypatch.setattr(limits, "resident_bytes", lambda: used)
        monkeypatch.setattr(limits, "release_memory", lambda: (released.append(now), release_memory()))
        monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: now))
        resource_limits, said = ResourceLimits([listener.address], NEED, lines.append), []
        for now, used in moments:  # noqa: B007 - the functions above read them
            resource_limits.turn()
            said.append(len(lines))
        return said, released

    return play


def test_connections_are_closed_above_the_memory_limit_and_again_only_if_memory_grows_further(
    follow: Follow,
) -> None:
    most = NEED + MARGIN_BYTES
    said, _ = follow(
        [
            (1.0, most),
            (1.1, most + 1),
            (1.15, most + 1 + MARGIN_BYTES),  # the memory of closed connections is not free yet
            (1.2, most + 2 + MARGIN_BYTES),  # memory grows further
            (1.9, NEED),  # freed
            (2.0, most + 1),
        ]
    )
    assert said == [0, 1, 1, 2, 2, 3]


def test_memory_above_the_need_is_released_now_and_then_without_closing_connections(
    follow: Follow,
) -> None:
    spare = NEED + (64 << 20)
    said, released = follow([(1.0, NEED), (2.0, spare), (3.0, spare), (8.0, spare), (14.0, NEED)])
    assert released == [2.0, 8.0] and not any(said)


def test_resident_bytes_grow_with_the_memory_in_use() -> None:
    before = resident_bytes()
    block = mmap.mmap(-1, 32 << 20)  # not from the heap, which may have kept as much from an earlier test
    block.write(b"x" * (32 << 20))
    assert resident_bytes() - before > 16 << 20
    block.close()
