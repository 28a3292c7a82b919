"""Strangers, thieves of names, and what can be read on the way: sockets with keys under attack."""

from __future__ import annotations

import ctypes
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from replay.client.base import ReplayRefused
from replay.client.writer import ExperienceWriter
from replay.config import ReplayConfig, ReplayProcess
from replay.server.server import ReplayServer
from tests.chaos.rows import Row
from tests.harness.proxy import TcpProxy
from tests.harness.waiting import PATIENCE_SECONDS, wait_until
from tests.replay.examples import make_spec, stream_chunks
from tests.transport.keys import Ring
from transport.lifetime import new_incarnation
from transport.messages.codec import pack, unpack
from transport.messages.replay import Ack, Hold
from transport.metrics import Metrics
from transport.sockets import channel
from transport.sockets.authenticator import AUTHENTICATOR, new_pair
from transport.sockets.client import Client
from transport.sockets.keys import make
from transport.sockets.server import Server

pytestmark = pytest.mark.chaos
GREETING_BYTES = 64  # of ZMTP; libzmq hangs up on who says more before it has been greeted
SILENCE_SECONDS = 0.5  # long enough for a greeting and a message on loopback, a hundred times over


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    return Ring(tmp_path / "keys")


def stranger(address: str, **options: Any) -> zmq.Socket[bytes]:
    """A raw socket with these options that has sent its messages."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.linger = 0
    for name, value in options.items():
        setattr(socket, name, value)
    socket.connect(address)
    for _ in range(10):
        socket.send(pack(Hold()))
    return socket


def curve(own: Any, server: str) -> dict[str, bytes]:
    return {"curve_publickey": own.public.encode(), "curve_secretkey": own.secret.encode(), "curve_serverkey": server.encode()}


def heard(server: Server, seconds: float, enough: float = math.inf) -> int:
    """Application messages that get through in this time, or until there are `enough`."""
    count, deadline = 0, time.monotonic() + seconds
    while count < enough and (left := deadline - time.monotonic()) > 0:
        count += server.receive(min(left, 0.05)) is not None
    return count


@pytest.mark.row(
    "S3",
    "a stranger connects",
    "NULL, PLAIN, wrong server key, unknown client key: 0 messages delivered, counted; right key works",
)
def test_no_stranger_is_heard(row: Row, ring: Ring) -> None:
    server, server_key = ring.server(), ring.of("replay").pair.public
    attempts: dict[str, Callable[[], dict[str, Any]]] = {
        "NULL": lambda: {},
        "PLAIN": lambda: {"plain_username": b"actor-0", "plain_password": b"actor-0"},
        "wrong server key": lambda: curve(ring.of("actor-0").pair, new_pair().public),
        "unknown client key": lambda: curve(new_pair(), server_key),
        "key of another role": lambda: curve(ring.of("evaluator").pair, server_key),
    }
    rounds = row.times(1, 10, 200)
    delivered, failures = 0, dict[str, int]()
    for _ in range(rounds):
        for name, options in attempts.items():
            before = server.handshakes_failed
            socket = stranger(server.address, **options())
            deadline = time.monotonic() + PATIENCE_SECONDS
            while server.handshakes_failed == before and time.monotonic() < deadline:
                delivered += server.receive(0.05) is not None
            socket.close()
            failures[name] = failures.get(name, 0) + int(server.handshakes_failed > before)
    delivered += heard(server, SILENCE_SECONDS)
    client = ring.client(server)
    client.send(Hold())
    right = server.receive(30)
    row.measured(f"{rounds} rounds", delivered=delivered, right_key=int(right is not None), **failures)
    client.close()
    server.close()
    assert delivered == 0 and right is not None
    assert failures == dict.fromkeys(attempts, rounds)


def kill(thread: threading.Thread) -> None:
    """Ends a thread from outside, whatever it does."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.alone
@pytest.mark.row("S4", "the authenticator dies", "new connections refused (0 delivered); alarm in 2 s or less")
def test_without_the_authenticator_no_new_peer_is_admitted(
    row: Row, ring: Ring, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "HANDSHAKE_MS", 1000)  # what a client waits before it tries again
    rounds, delivered, slowest = row.times(1, 10, 100), 0, 0.0
    for _ in range(rounds):
        server = ring.server()
        known = ring.client(server)
        known.send(Hold())
        assert server.receive(30) is not None
        assert AUTHENTICATOR._thread is not None
        before = AUTHENTICATOR.alarms
        kill(AUTHENTICATOR._thread)
        began = time.monotonic()
        late = ring.client(server, "actor-1")
        late.send(Ack(1))
        strange = stranger(server.address, **curve(new_pair(), ring.of("replay").pair.public))
        known.send(Hold())
        deadline = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < deadline:  # not by way of receive(), which would notice
            if server.socket.poll(50):
                parts = server.socket.recv_multipart()
                delivered += unpack(parts[1]) != Hold()
        wait_until(lambda server=server, before=before: server.receive() is None and AUTHENTICATOR.alarms > before, what="alarm")  # type: ignore[misc]
        slowest = max(slowest, time.monotonic() - began)
        arrival = server.receive(30)  # the new authenticator lets in whom it should
        assert arrival is not None and arrival[1] == Ack(1)
        late.close()
        known.close()
        strange.close()
        server.close()
    said = capfd.readouterr().out.count("alarm: the authenticator has died")
    row.measured(f"{rounds} kills", delivered=delivered, slowest_alarm_seconds=slowest, alarms=said)
    assert delivered == 0 and slowest <= row.limit(2) and said == rounds


@pytest.mark.alone
@pytest.mark.row("S4", "the authenticator hangs", "new connections refused (0 delivered); alarm in 2 s or less")
def test_while_the_authenticator_hangs_no_new_peer_is_admitted(row: Row, ring: Ring) -> None:
    server, release = ring.server(), threading.Event()
    (domain,) = AUTHENTICATOR._find_names
    honest = AUTHENTICATOR._find_names[domain]
    AUTHENTICATOR._find_names[domain] = lambda public: (release.wait(60), honest(public))[1]
    client = ring.client(server)
    client.send(Hold())
    before, began = AUTHENTICATOR.alarms, time.monotonic()
    delivered = 0
    try:
        while AUTHENTICATOR.alarms == before and time.monotonic() < began + row.limit(2) + 3:
            delivered += server.receive(0.05) is not None
        seconds = time.monotonic() - began
    finally:
        release.set()
    row.measured(delivered=delivered, alarm_seconds=seconds)
    arrival = server.receive(30)
    client.close()
    server.close()
    assert delivered == 0 and seconds <= row.limit(2) and arrival is not None


@contextmanager
def tapped(ring: Ring | None) -> Iterator[tuple[TcpProxy, Server, Client]]:
    """A server and a client, with keys or without, behind a proxy that records."""
    server = ring.server() if ring else Server("tcp://127.0.0.1:*")
    with TcpProxy(server.address, record=True) as tap:
        client = Client(tap.address, keys=ring.of("actor-0") if ring else None, endpoint="replay")
        yield tap, server, client
        client.close()
    server.close()


def converse(server: Server, client: Client, marker: bytes, seconds: float) -> int:
    """Says the marker in both directions; returns how often it has arrived."""
    deadline, arrived = time.monotonic() + seconds, 0
    while time.monotonic() < deadline or not arrived:
        client.send(Hold(), [marker * 100])
        arrival = server.receive(30)
        assert arrival is not None, "the tap lets nothing through"
        server.send(arrival[0], Hold(), [marker * 100])
        answer = client.receive(30)
        arrived += answer is not None and answer[1][0] == marker * 100
    return arrived


@pytest.mark.row("S5", "somebody reads along", "known plaintext marker absent")
def test_what_is_said_cannot_be_read_on_the_way(row: Row, ring: Ring) -> None:
    seconds, marker, found, said = row.times(1, 15, 60), secrets.token_bytes(16), dict[str, int](), dict[str, int]()
    for name, keys in (("without keys", None), ("with keys", ring)):
        with tapped(keys) as (tap, server, client):
            said[name] = converse(server, client, marker, seconds if keys else 0.1)
        found[name] = tap.said("up").count(marker) + tap.said("down").count(marker)
    row.measured("a recording TCP proxy", messages=said["with keys"], markers_with_keys=found["with keys"])
    row.measured(markers_without_keys=found["without keys"])
    assert found["with keys"] == 0 and found["without keys"] == 200 * said["without keys"]


def played_again(address: str, said: bytes) -> socket.socket:
    """Says it to the server over a new connection; close that when it has had time to be heard."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    again = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)
    with suppress(OSError):  # the server may hang up in the middle
        again.sendall(said[:GREETING_BYTES])
        left = GREETING_BYTES
        while left and (answer := again.recv(left)):
            left -= len(answer)
        again.sendall(said[GREETING_BYTES:])
    return again


@pytest.mark.row("S14", "recorded traffic is played again", "0 accepted")
def test_recorded_bytes_are_not_accepted_again(row: Row, ring: Ring) -> None:
    rounds, accepted = row.times(1, 20, 200), {"without keys": 0, "with keys": 0}
    for name, keys in (("without keys", None), ("with keys", ring)):
        with tapped(keys) as (tap, server, client):
            said = converse(server, client, b"chunk", 0.1)
            for _ in range(rounds if keys else 1):
                with played_again(server.address, tap.said("up")):
                    accepted[name] += heard(server, SILENCE_SECONDS) if keys else heard(server, PATIENCE_SECONDS, enough=1)
    row.measured(f"{rounds} times {said} messages", accepted=accepted["with keys"], without_keys=accepted["without keys"])
    assert accepted["with keys"] == 0 < accepted["without keys"]


@pytest.mark.row("S13", "an actor's key speaks in another's name", "rejected and counted, the other unaffected")
def test_no_peer_can_use_the_name_of_another(row: Row, ring: Ring) -> None:
    spec, metrics = make_spec(), Metrics()
    settings = ReplayProcess(0, ReplayConfig(min_size=1, capacity=4096))
    server = ReplayServer(spec, settings, "tcp://127.0.0.1:*", 1, metrics, keys=ring.of("replay"))
    writer = ExperienceWriter(server.address, "actor-1", new_incarnation(), spec, 1, ring.of("actor-1"))

    def turned(true: Callable[[], object]) -> bool:
        server.turn(0.001)
        writer.poll()
        return bool(true())

    sent = 0

    def acknowledged() -> int:
        nonlocal sent
        for chunk in stream_chunks(spec, {}, 40):
            wait_until(lambda: turned(lambda: writer.has_credit), what="credit")
            writer.insert(chunk)
            sent += chunk.length
        wait_until(lambda: turned(lambda: not writer.outstanding), what="acknowledged")
        return writer.acknowledged_steps

    assert acknowledged() == sent > 0
    make(ring.folder, ("serve-1",), new_pair)
    policy_server = ExperienceWriter(server.address, "serve-1", new_incarnation(), spec, 1, ring.of("serve-1"))

    def served() -> bool:
        policy_server.poll()
        return turned(lambda: policy_server.has_credit)

    wait_until(served, what="a policy server is a writer")
    policy_server.close()
    thefts = row.times(4, 50, 500)
    refused = 0
    for number in range(thefts):
        name, own = (("actor-1", "actor-0"), ("actor-0", "learner"), ("actor-1", "serve-1"), ("serve-1", "actor-1"))[number % 4]
        thief = ExperienceWriter(server.address, name, new_incarnation(), spec, 1, ring.of(own))

        def rejected(thief: ExperienceWriter = thief) -> bool:
            turned(lambda: True)
            try:
                thief.poll()
            except ReplayRefused as error:
                return "does not authorise" in str(error)
            return False

        wait_until(rejected, what="the thief refused")
        refused += 1
        assert not thief.has_credit
        thief.close()
    after = acknowledged()
    server.measure()
    record = metrics.record()
    row.measured(thefts=thefts, refused=refused, counted=int(record["impostors"]), lost_by_the_other=sent - after)
    writer.close()
    server.close()
    assert record["impostors"] == record["rejected"] >= refused == thefts and after == sent
    assert record["duplicates"] == record["gaps"] == 0
