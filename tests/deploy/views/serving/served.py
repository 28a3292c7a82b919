"""A policy server in a thread, its clients, and policies whose every version is known by its answers."""

from __future__ import annotations

import http.client
import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
from websockets.sync.client import ClientConnection, connect

from deploy.views.serving.messages import MSGPACK
from deploy.views.serving.recording import Recording
from deploy.views.serving.server import PolicyServer
from deploy.views.serving.sources import FileSource
from deploy.views.serving.versions import Versions
from deploy.views.sharing.named import policy_file
from learner.weights import checkpoint

TOKEN = "a-token-of-these-tests-alone"
SECONDS = 60.0
PENDULUM = [0.1, 0.2, 0.3]
STEEP = 1000.0  # a first entry for which `write_version(…, faulty=True)` has no finite output


def answer_of(version: int) -> float:
    """The action of a policy that write_version() has written, whatever it observes."""
    return 2 * math.tanh(version / 100)


def write_version(path: Path, version: int, faulty: bool = False) -> None:
    """A policy of Pendulum-v1 whose action is answer_of(version), as a file that is replaced in one step."""
    weights, metadata = checkpoint.read(zoo("pendulum"))
    weights = {name: np.zeros_like(values) for name, values in weights.items()}
    weights["head.0.bias"][0] = version / 100
    if faulty:
        weights["body.torso.1.weight"][0, 0], weights["body.torso.3.weight"][0, 0] = 1e30, 1e8
    checkpoint.write(path, weights, metadata | {"policy_version": str(version)})


def zoo(name: str) -> Path:
    found = policy_file(f"zoo:{name}")
    assert found is not None
    return found


class Answer(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Served:
    """A server, as its clients see it."""

    def __init__(self, server: PolicyServer) -> None:
        self.server, self.port = server, server.port

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str | None) -> Answer:
        """With the token, unless `authorization` says otherwise; names of headers with _ for -."""
        given = {"authorization": f"Bearer {TOKEN}"} | {name.replace("_", "-"): value for name, value in headers.items()}
        connection = self.connection()
        try:
            connection.request(method, path, body, {name: value for name, value in given.items() if value is not None})
            found = connection.getresponse()
            text, received = found.read(), {name.lower(): value for name, value in found.getheaders()}
            read = msgpack.unpackb if received.get("content-type") == MSGPACK else json.loads
            return Answer(found.status, read(text) if text else None, received)
        finally:
            connection.close()

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)

    def act_over(self, connection: http.client.HTTPConnection, **message: Any) -> Any:
        """Over a connection that stays."""
        connection.request("POST", "/act", json.dumps(message).encode(), {"authorization": f"Bearer {TOKEN}"})
        found = connection.getresponse()
        text = found.read()
        assert found.status == 200, text
        return json.loads(text)

    def act(self, **message: Any) -> Any:
        """The answer, which is one."""
        found = self.send("POST", "/act", json.dumps(message).encode())
        assert found.status == 200, found
        return found.body

    def policy(self) -> Any:
        return self.send("GET", "/policy").body

    def websocket(self, **headers: str) -> ClientConnection:
        return connect(
            f"ws://127.0.0.1:{self.port}/act",
            additional_headers={"Authorization": f"Bearer {TOKEN}"} | headers,
            compression=None,
            open_timeout=SECONDS,
        )


@contextmanager
def serving(
    path: Path,
    share: float = 1.0,
    promote_after: int = 0,
    recording: Callable[[FileSource], Recording] | None = None,
    **options: Any,
) -> Iterator[Served]:
    """A server of the policy in a file."""
    source = FileSource(path, lambda config: None)
    versions = Versions(source.first(), share, promote_after, lambda line: None)
    server = PolicyServer(
        source,
        versions,
        lambda port: recording(source) if recording else None,
        TOKEN,
        "127.0.0.1",
        0,
        say=lambda line: None,
        **options,
    )
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield Served(server)
    finally:
        server.stop()
        thread.join(SECONDS)
        assert not thread.is_alive()


def ask(websocket: ClientConnection, **message: Any) -> Any:
    websocket.send(json.dumps(message))
    return json.loads(websocket.recv(SECONDS))
