"""The port of a policy server: what strangers, pages of other sites and clients of bad will get, and that it goes on."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgpack
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from deploy.views.serving import app, server
from deploy.views.serving.messages import MSGPACK, Refusal
from deploy.views.serving.sessions import Sessions
from deploy.views.serving.sources import FileSource
from tests.deploy.views.serving.served import PENDULUM, SECONDS, TOKEN, Served, ask, serving, write_version
from tests.harness.waiting import wait_until

SITE = "https://friend.example"
UPGRADE = (
    b"GET /act HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
GOOD = json.dumps({"observation": PENDULUM}).encode()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("secret-folder") / "policy.safetensors"
    write_version(found, 1)
    return found


@pytest.fixture
def served(path: Path) -> Iterator[Served]:
    with serving(path, origins=[SITE]) as found:
        yield found
        assert found.act(observation=PENDULUM)["policy_version"] == 1, "it goes on"


def websocket_status(served: Served, **headers: str) -> int:
    """How an opening handshake is answered; 101 where it is accepted."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with connect(f"ws://127.0.0.1:{served.port}/act", additional_headers=given, open_timeout=SECONDS):
            return 101
    except InvalidStatus as error:
        return error.response.status_code


def ends(one: socket.socket) -> bytes:
    """What a connection gets until the server closes it."""
    one.settimeout(SECONDS)
    found = b""
    try:
        while part := one.recv(1 << 16):
            found += part
    except ConnectionError:
        pass
    finally:
        one.close()
    return found


def raw(served: Served, data: bytes) -> socket.socket:
    one = socket.create_connection(("127.0.0.1", served.port))
    one.sendall(data)
    return one


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer \xe9"]
)
def test_nothing_is_answered_without_the_token(served: Served, given: str | None) -> None:
    for method, where in (
        ("POST", "/act"),
        ("GET", "/policy"),
        ("GET", "/health"),
        ("POST", "/promote"),
        ("POST", "/rollback"),
        ("GET", "/x"),
    ):
        found = served.send(method, where, GOOD if method == "POST" else None, authorization=given)
        assert found.status == 401 and list(found.body) == ["error"] and found.headers["connection"] == "close"
    if given is not None:
        assert websocket_status(served, authorization=given) == 401


def test_a_websocket_that_cannot_send_headers_gives_the_token_first(served: Served) -> None:
    where = f"ws://127.0.0.1:{served.port}/act"
    with connect(where) as websocket:
        websocket.send(json.dumps({"token": TOKEN}))
        assert ask(websocket, observation=PENDULUM)["policy_version"] == 1
    for first in (json.dumps({"token": "wrong"}), GOOD.decode(), b"\xc1", "x" * 100_000):
        with connect(where) as websocket:
            websocket.send(first)
            with pytest.raises(ConnectionClosed):
                websocket.recv(SECONDS)


def test_pages_of_other_sites_are_refused_and_of_allowed_ones_answered(served: Served) -> None:
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": f"{SITE}.evil.example"},
        {"sec_fetch_site": "cross-site"},
    ):
        assert served.send("POST", "/act", GOOD, **headers).status == 403
        assert "access-control-allow-origin" not in served.send("OPTIONS", "/act", None, authorization=None, **headers).headers
        assert websocket_status(served, authorization=f"Bearer {TOKEN}", **headers) == 403
    found = served.send("POST", "/act", GOOD, origin=SITE)
    assert found.status == 200 and found.headers["access-control-allow-origin"] == SITE
    asked = served.send("OPTIONS", "/act", None, authorization=None, origin=SITE)
    assert asked.status == 204 and "authorization" in asked.headers["access-control-allow-headers"]
    assert served.send("POST", "/act", GOOD, origin=SITE, authorization=None).status == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_foreign_name_that_leads_here_is_refused(served: Served, host: str) -> None:
    assert served.send("POST", "/act", GOOD, host=host).status == 403


@pytest.mark.parametrize(("token", "size", "status"), [("wrong", 50_000, 401), (TOKEN, 2 << 20, 413)])
def test_a_refusal_is_read_also_by_a_client_that_is_still_sending(served: Served, token: str, size: int, status: int) -> None:
    head = f"POST /act HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Length: {size}\r\n\r\n"
    one = raw(served, head.encode())
    for _ in range(2):
        time.sleep(0.1)  # an answer before the body's end would come now, and the connection would be closed
        one.sendall(b" " * (size // 2))
    assert ends(one).startswith(b"HTTP/1.1 %d " % status)


def test_deep_and_bloated_messages_are_refused(served: Served) -> None:
    deep = msgpack.packb(0)
    for body in (
        b'{"observation": ' + b"[" * 60_000 + b"]" * 60_000 + b"}",
        b"\x81\xabobservation" + b"\x91" * 60_000 + deep,
        b"\xdf\xff\xff\xff\xff",  # a map of four billion entries
        b"\x81\xabobservation\xdd\xff\xff\xff\xff",
        b"\x81\xabobservation\xc6\xff\xff\xff\xff",
        b"\x81\xabobservation\xc9\x00\x00\x00\x01\x05\x00",  # an extension
    ):
        kind = "application/json" if body[:1] == b"{" else MSGPACK
        found = served.send("POST", "/act", body, content_type=kind)
        assert found.status in (400, 413), found


def test_what_never_ends_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.ServedHttp, "first_seconds", 0.3)
    for module, name in ((app, "BODY_SECONDS"), (app, "GREETING_SECONDS"), (server, "HANGUP_SECONDS")):
        monkeypatch.setattr(module, name, 0.3)
    head = f"POST /act HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
    assert ends(raw(served, b"")) == b""
    assert ends(raw(served, head)) == b""
    assert b" 408 " in ends(raw(served, head + b"Content-Length: 1000\r\n\r\n{"))
    assert b" 413 " in ends(raw(served, head + b"Content-Length: 100000000000\r\n\r\n{"))
    assert b" 400 " in ends(raw(served, head + b"X: " + b"x" * 100_000))
    assert b" 101 " in ends(raw(served, UPGRADE)), "it says nothing then"
    huge = raw(served, UPGRADE + b"\x81\xff" + struct.pack("!Q", 1 << 40) + bytes(4))
    assert b" 101 " in ends(huge)


def test_a_stranger_cannot_fill_memory_by_a_first_message(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "GREETING_SECONDS", 10 * SECONDS)
    monkeypatch.setattr(server, "HANGUP_SECONDS", 10 * SECONDS)
    stranger = raw(served, UPGRADE)
    assert b" 101 " in stranger.recv(1 << 16)
    stranger.sendall(b"\x81\xff" + struct.pack("!Q", 80_000) + bytes(4) + bytes(60_000))  # within the limit of clients
    assert ends(stranger) == b""


def test_connections_beyond_the_limit_are_closed_and_keep_nobody_out_for_long(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.ServedHttp, "first_seconds", 1.0)
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 20)
    idle = [raw(served, b"") for _ in range(40)]

    def answers() -> bool:
        try:
            return served.send("GET", "/health").status == 200
        except OSError:
            return False

    wait_until(answers)
    assert all(ends(one) == b"" for one in idle)
    monkeypatch.setattr(app, "MOST_CONNECTIONS", 3)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(served.websocket())
        assert websocket_status(served, authorization=f"Bearer {TOKEN}") == 503


def test_sessions_are_limited_and_a_silent_one_makes_room(path: Path) -> None:
    now = 0.0
    sessions = Sessions(FileSource(path, lambda config: None).about.spec, clock=lambda: now)
    with pytest.raises(Refusal, match="sessions already"):
        for number in range(100_000):
            sessions.get(str(number))
    before, now = len(sessions), 300.0
    sessions.get("0")
    now = 700.0
    sessions.get("new")
    assert before <= 4096 and len(sessions) == 2


def test_no_answer_tells_a_path_of_this_machine(served: Served, path: Path) -> None:
    path.with_name("broken").write_bytes(b"broken")
    path.with_name("broken").replace(path)
    wait_until(lambda: served.policy()["versions"]["refused"])
    write_version(path, 1)
    for method, where, body in (
        ("GET", "/policy", None),
        ("POST", "/act", b"{"),
        ("POST", "/act", GOOD),
        ("GET", "/../../etc/passwd", None),
    ):
        found = served.send(method, where, body)
        assert str(path.parent) not in json.dumps(found.body) and "secret-folder" not in json.dumps(found.body)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_over_tls_an_unencrypted_request_gets_nothing(path: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with serving(path, tls=server.Tls(str(certificate), str(key))) as found:
        context = ssl.create_default_context(cafile=str(certificate))
        with connect(
            f"wss://localhost:{found.port}/act", ssl=context, additional_headers={"Authorization": f"Bearer {TOKEN}"}
        ) as websocket:
            assert ask(websocket, observation=PENDULUM)["policy_version"] == 1
        assert b"200" not in ends(
            raw(found, b"GET /health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n\r\n" % TOKEN.encode())
        )
        old = ssl.create_default_context(cafile=str(certificate))
        with pytest.warns(DeprecationWarning):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)), socket.create_connection(("127.0.0.1", found.port)) as plain:
            old.wrap_socket(plain, server_hostname="localhost")


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost, and its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost".split()
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key
