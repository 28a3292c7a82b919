"""Who is let in, and what a stranger at the port can do."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import connect

from actors.envs.remote import server
from actors.envs.remote.family import Remote, RemoteOptions
from actors.envs.remote.server import Session, SessionServer
from actors.errors import EnvError
from tests.actors.envs.remote.programs import TOKEN, Raw, hello
from tests.flow.counting_env import CountingEnv
from tests.harness.waiting import wait_until

ENV = CountingEnv(image=False)
LOCAL = "127.0.0.1"


class Let:
    """A server that keeps those whom it lets in until the test ends, and what it says about the others."""

    def __init__(self, **options: Any) -> None:
        self.sessions, self.refused, self._over = list[Session](), list[str](), threading.Event()
        self.server = SessionServer((LOCAL, 0), TOKEN, self._keep, self.refused.append, **options)
        self.port = self.server.port

    def _keep(self, session: Session) -> None:
        self.sessions.append(session)
        session.send({"welcome": {}})
        self._over.wait()

    def close(self) -> None:
        self._over.set()
        self.server.close()


@pytest.fixture
def let() -> Iterator[Let]:
    made = Let(origins=("http://localhost:8000",))
    yield made
    made.close()


def test_a_program_with_the_token_is_let_in_by_json_and_by_messagepack(let: Let) -> None:
    for binary in (False, True):
        raw = Raw(let.port, binary)
        assert raw.exchange(hello(ENV)) == {"welcome": {}}
        raw.close()
    assert len(let.sessions) == 2 and not let.refused


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"token": "another-token-of-someone"}, "the token is wrong"),
        ({"token": ""}, "the token is wrong"),
        ({"token": "ünïcode-" * 4}, "the token is wrong"),
        ({"token": 3}, "Expected `str`"),
        ({"token": None}, "Expected `str`"),
        ({"protocol": 2}, "protocol 1, not 2"),
        ({"environments": 0}, "environments must be 1 to"),
        ({"environments": 10**9}, "environments must be 1 to"),
        ({"mode": "both"}, "Invalid enum value"),
        ({"mode": "serve", "environments": 2}, "one environment for each connection"),
        ({"name": "x" * 41}, "at most 40"),
        ({"name": "red\x1b[31m"}, "printable"),
        ({"surprise": 1}, "unknown field"),
        ({"observation": {"kind": "box"}}, "not a description of a space"),
        ({"observation": {"kind": "box", "shape": [10**9, 10**9]}}, "more than 1,000,000 numbers"),
        ({"observation": {"kind": "box", "shape": [1000, 1001]}}, "more than 1,000,000 numbers"),
        ({"observation": {"kind": "multibinary", "n": 10**12}}, "more than 1,000,000 numbers"),
        ({"observation": {"kind": "sphere"}}, "not a description of a space"),
        ({"observation": {"kind": ["box"]}}, "not a description of a space"),
        ({"action": {"kind": "discrete", "n": -1}}, "not a description of a space"),
        ({"action": {"kind": "multidiscrete"}}, "not a description of a space"),
        ({"action": {"kind": "dict", "spaces": {"a": 3}}}, "not a description of a space"),
    ],
)
def test_a_wrong_hello_is_told_why_and_nobody_is_let_in(let: Let, changed: dict[str, Any], why: str) -> None:
    answer = Raw(let.port).exchange(hello(ENV) | changed)
    assert why in answer["close"] and answer["again"] is False
    assert "\n" not in answer["close"] and not let.sessions and let.refused == [answer["close"]]


@pytest.mark.parametrize(
    "data",
    ["", "{", "[]", "null", "[" * 100_000, b"", b"\xc1", b"\xdf\xff\xff\xff\xff", b"\x81\xa1a" * 9],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_no_hello_is_refused(let: Let, data: str | bytes) -> None:
    raw = Raw(let.port, binary=isinstance(data, bytes))
    raw.socket.send(data)
    assert "a message is no map" in raw.receive()["close"] and not let.sessions


def test_pages_of_other_origins_are_refused_before_they_can_say_anything(let: Let) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        Raw(let.port, origin="http://evil.example")
    assert "evil.example" in let.refused[0] and "--env.origins" in let.refused[0]
    assert "welcome" in Raw(let.port, origin="http://localhost:8000").exchange(hello(ENV))


def test_a_message_that_is_too_long_ends_its_connection_alone(let: Let) -> None:
    other = Raw(let.port)
    assert "welcome" in other.exchange(hello(ENV))
    long = Raw(let.port)
    long.socket.send("x" * (server.MESSAGE_BYTES + 1))
    with pytest.raises(ConnectionClosed):
        long.socket.recv(30)
    other.send({"observation": [0] * 8})
    assert let.sessions[0].receive().reward is None


def test_those_who_say_nothing_are_few_and_not_for_long(let: Let, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_UNGREETED", 3)
    monkeypatch.setattr(server, "GREETING_SECONDS", 0.5)
    silent = [Raw(let.port) for _ in range(2)]
    dumb = socket.create_connection((LOCAL, let.port))  # not even a handshake
    wait_until(lambda: len(let.server.ungreeted) == 3)
    with pytest.raises((OSError, WebSocketException)):
        Raw(let.port)
    for raw in silent:
        with pytest.raises(ConnectionClosed):
            raw.socket.recv(30)
    dumb.close()
    wait_until(lambda: not let.server.ungreeted)
    assert "welcome" in Raw(let.port).exchange(hello(ENV))


def test_what_speaks_another_protocol_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "GREETING_SECONDS", 1.0)
    let = Let()
    for data in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\x00" * 4096):
        with socket.create_connection((LOCAL, let.port)) as plain:
            plain.sendall(data)
            plain.settimeout(30)
            plain.recv(4096)
    assert "welcome" in Raw(let.port).exchange(hello(ENV))
    let.close()


def test_a_port_that_is_taken_is_one_line(let: Let) -> None:
    with pytest.raises(EnvError, match=rf"cannot listen on 127.0.0.1 port {let.port} .*--env.port takes another"):
        SessionServer((LOCAL, let.port), TOKEN, lambda session: None)


def test_beyond_this_machine_a_certificate_is_needed() -> None:
    family = Remote("remote", RemoteOptions(bind="0.0.0.0"))
    with pytest.raises(EnvError, match=r"would be sent in clear: name --env\.certificate"):
        family.listen(0, lambda program: None, lambda line: None)
    family = Remote("remote", RemoteOptions(certificate="/none.pem"))
    with pytest.raises(EnvError, match=r"env\.certificate /none\.pem: No such file"):
        family.listen(0, lambda program: None, lambda line: None)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, to make a certificate")
def test_with_a_certificate_programs_connect_by_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    named = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *named], check=True, capture_output=True)
    family = Remote("remote", RemoteOptions(certificate=str(certificate), private_key=str(key)))
    let_in = threading.Event()
    listening = family.listen(0, lambda program: let_in.set(), lambda line: None)
    trusting = ssl.create_default_context(cafile=str(certificate))
    with connect(f"wss://{LOCAL}:{listening.port}", ssl=trusting, compression=None) as program:
        program.send(json.dumps(hello(ENV)))
        assert let_in.wait(30)
    with pytest.raises((OSError, WebSocketException)):
        Raw(listening.port)  # without TLS
    listening.close()
