"""A process's connections are closed when something runs out, and nothing else of it is."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from transport.sockets import connections
from transport.sockets import limits as guard
from transport.sockets.connections import close_connections
from transport.sockets.limits import MARGIN_BYTES, ResourceLimits, raise_descriptor_limit, resident_bytes

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the guard works on Linux alone")


class Door:
    """A listening socket and those who have come."""

    def __init__(self, folder: str = "") -> None:
        """By tcp; by ipc in a folder."""
        if folder:
            self.listening = socket.socket(socket.AF_UNIX)
            self.listening.bind(f"{folder}/door")
            self.listening.listen()
            self.address = f"ipc://{folder}/door"
        else:
            self.listening = socket.create_server(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{self.listening.getsockname()[1]}"
        self.guests: list[socket.socket] = []
        self.accepted: list[socket.socket] = []

    def come(self, count: int) -> None:
        """So many connect, and are let in."""
        for _ in range(count):
            guest = socket.socket(self.listening.family)
            guest.connect(self.listening.getsockname())
            guest.settimeout(10)
            self.guests.append(guest)
            self.accepted.append(self.listening.accept()[0])

    def close(self) -> None:
        for each in (self.listening, *self.guests, *self.accepted):
            each.close()


@pytest.fixture(params=["tcp", "ipc"])
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    made = Door(str(tmp_path_factory.mktemp("d")) if request.param == "ipc" else "")
    yield made
    made.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_all_who_have_come_are_sent_away_and_others_may_come(door: Door) -> None:
    door.come(3)
    assert close_connections(door.address) == 3
    assert [guest.recv(1) for guest in door.guests] == [b""] * 3
    door.come(1)
    door.guests[-1].sendall(b"x")
    assert door.accepted[-1].recv(1) == b"x"


def test_no_descriptor_is_lost_by_it_however_often(door: Door) -> None:
    door.come(2)
    before = descriptors()
    for _ in range(5):
        close_connections(door.address)
    assert descriptors() == before


def test_connections_elsewhere_stay(door: Door) -> None:
    other = Door()
    try:
        other.come(1)
        assert close_connections(door.address) == 0
        other.guests[0].sendall(b"x")
        assert other.accepted[0].recv(1) == b"x"
    finally:
        other.close()


def test_they_are_found_even_when_no_descriptor_is_left_to_look_with(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(path: str) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    door.come(2)
    monkeypatch.setattr(connections.os, "listdir", none_left)
    assert close_connections(door.address) == 2


def test_half_of_all_descriptors_taken_is_enough(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    watching = ResourceLimits([door.address], report=told.append)
    door.come(2)
    watching.turn()
    assert not told
    monkeypatch.setattr(guard, "lowest_free_descriptor", lambda: raise_descriptor_limit() // 2 + 1)
    watching.turn()
    assert told == ["half of all file descriptors were taken: closed all 2 connections; those of this run come back"]


def test_memory_beyond_the_limit_closes_them_again_only_when_still_more_is_taken(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    taken, now = 0, 0.0
    monkeypatch.setattr(guard, "resident_bytes", lambda: taken)
    monkeypatch.setattr(guard, "time", SimpleNamespace(monotonic=lambda: now))
    watching = ResourceLimits([door.address], 1000, told.append)
    seen = []
    for now, taken in [  # noqa: B007 - the functions above read them
        (1.0, 1000 + MARGIN_BYTES),  # all that it may have
        (1.1, 1001 + MARGIN_BYTES),
        (1.15, 1001 + 2 * MARGIN_BYTES),  # a moment later: what was closed is not free yet
        (1.2, 1002 + 2 * MARGIN_BYTES),  # somebody goes on taking
        (1.9, 2000),  # given back
        (2.0, 1001 + MARGIN_BYTES),
    ]:
        watching.turn()
        seen.append(len(told))
    assert seen == [0, 1, 1, 2, 2, 3]


def test_resident_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resident_bytes() > 1 << 20
    before = resident_bytes()
    held = bytearray(os.urandom(1 << 16) * 512)  # 32 MiB
    assert resident_bytes() - before > 16 << 20
    del held
