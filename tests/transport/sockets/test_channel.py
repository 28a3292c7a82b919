"""Messages over real sockets."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from tests.harness.address import local_address
from tests.harness.waiting import wait_until
from transport.messages.control import Answer, Progress
from transport.messages.fields import (
    FAULT_LETTERS,
    LINE_LETTERS,
    MAX_HEADER_BYTES,
    MAX_TEXT,
    MOST_ENDED,
    MOST_LINES,
    MOST_PLACES,
    WORDS_LETTERS,
    Message,
)
from transport.messages.hosts import Begun, Ended, HostHello, HostServer, Said
from transport.messages.replay import Ack, Hold, Insert
from transport.messages.weights import Announce
from transport.sockets.channel import FRAME_BYTES, cut
from transport.sockets.client import Client, Listener
from transport.sockets.server import Announcer, Server

ACTOR = Begun("actor-1023", 2**63 - 1, "k" * 40, 4_000_000, "f" * FAULT_LETTERS, 10**12, 1600.5)
END = Ended(7, -9, "\U0001f600" * WORDS_LETTERS, True, True)
SERVER = HostServer("inference", 4_000_000, 2**62, "\U0001f600" * WORDS_LETTERS, 10**12, 1600.5)
STATE = (ACTOR,) * MOST_PLACES, (END,) * MOST_ENDED, True, (SERVER,) * 2
HELLO = HostHello("host-3", 5, 6, 128, "d" * 32, *STATE)
LINES = ("\U0001f600" * LINE_LETTERS,) * MOST_LINES
FULL = [  # as large as their headers can be, and an ordinary one
    HELLO,
    Said("host-3", "actor-7", LINES),
    Progress("learner", 1, "ready", 2, {}, resting=True, answer=Answer(7, True, "t" * MAX_TEXT)),
    Insert(3, 1, 64, 12345),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(local_address(tmp_path, "s"), max_part_bytes=100_000)
    yield made
    made.close()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    made = Client(server.address)
    yield made
    made.close()


@pytest.mark.parametrize("message", FULL, ids=lambda message: type(message).__name__)
def test_a_message_and_its_parts_arrive_unchanged(server: Server, client: Client, message: Message) -> None:
    assert client.send(message, [b"one", b""])
    arrival = server.receive(30)
    assert arrival is not None
    peer, received, parts = arrival
    assert received == message and parts == [b"one", b""]
    assert server.send(peer, Ack(7))
    answer = client.receive(30)
    assert answer is not None and answer[0] == Ack(7)


def test_malformed_messages_are_counted_and_dropped(server: Server, client: Client) -> None:
    wild = {"type": "insert", "sequence": 0, "stream": 0, "length": 10**9, "crc32": 0}
    unknown = {"type": "ack", "next_sequence": 1, "extra": 2}
    packed = map(msgpack.packb, ({"type": "ack"}, {"type": "nonsense"}, {"type": 7}, [1], wild, unknown))
    junk = [b"", b"\xc1", b"\xff" * 100, bytes(MAX_HEADER_BYTES + 1), *packed]
    for header in junk:
        client.socket.send_multipart([header])
    client.send(Hold())
    arrival = server.receive(30)
    assert arrival is not None and arrival[1] == Hold()
    assert server.malformed == len(junk)


def test_a_part_beyond_the_limit_disconnects_its_sender_and_no_other(server: Server) -> None:
    greedy, honest = Client(server.address), Client(server.address)
    greedy.send(Hold(), [bytes(200_000)])
    honest.send(Ack(1))
    arrival = server.receive(30)
    assert arrival is not None and arrival[1] == Ack(1)
    assert server.receive(0.2) is None
    greedy.close()
    honest.close()


def test_sending_to_a_lost_peer_returns_false(server: Server) -> None:
    client = Client(server.address)
    client.send(Hold())
    arrival = server.receive(30)
    assert arrival is not None
    client.close()
    wait_until(lambda: not server.send(arrival[0], Hold()), what="the server notices")


def test_a_listener_keeps_only_the_newest_announcement(tmp_path: Path) -> None:
    address = local_address(tmp_path, "a")
    announcer, listener = Announcer(address), Listener(address)
    received: list[int] = []

    def receives(version: int) -> bool:
        announcer.announce(Announce(1, version, 10, "s"))  # repeated, as the publisher does: any one may be missed
        newest = listener.newest()
        if newest is not None:
            received.append(newest.version)
        return newest is not None and newest.version == version

    wait_until(lambda: receives(0), what="the listener has joined")
    for version in range(1, 50):
        announcer.announce(Announce(1, version, 10, "s"))
    wait_until(lambda: receives(50), what="the newest version")
    assert received == sorted(received) and len(received) < 25, "old announcements piled up"
    announcer.close()
    listener.close()


def test_an_address_in_use_is_an_error_that_names_it() -> None:
    first = Server("tcp://127.0.0.1:*")
    with pytest.raises(OSError, match=first.address):
        Server(first.address)
    first.close()


def test_a_payload_is_cut_to_the_frame_limit_without_loss() -> None:
    payload = bytes(range(256)) * (FRAME_BYTES // 100)
    pieces = cut(payload)
    assert max(map(len, pieces)) <= FRAME_BYTES and b"".join(pieces) == payload


def test_a_socket_that_cannot_be_looked_at_is_not_taken_for_deleted(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stat(path: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as closed:
        closed.setattr(os, "stat", stat)
        server._next_look = 0.0
        server.keep_reachable()
    client.send(Hold())
    assert wait_until(lambda: server.receive(0.1), what="a message arrives") and not capsys.readouterr().out
