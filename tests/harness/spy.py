"""Writes down what a process says and hears, as it is before it is encrypted, and the secret keys that it makes."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import zmq

FOLDER_VARIABLE = "HEADRACE_SPY"
SITE = "import tests.harness.spy\ntests.harness.spy.install()\n"  # of sitecustomize.py, which every Python process imports first
HEAD = struct.Struct("<BI")
SENT, RECEIVED, SECRET = range(3)


class Heard(NamedTuple):
    """What some processes have written down, each part of a message as an entry of its own."""

    sent: list[bytes]
    received: list[bytes]
    secrets: list[bytes]


def environment(folder: Path, usual: dict[str, str]) -> dict[str, str]:
    """For a process that is to be spied on, with all that it starts: they write into `folder`."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE)
    return usual | {FOLDER_VARIABLE: str(folder), "PYTHONPATH": os.pathsep.join([str(folder), usual["PYTHONPATH"]])}


def heard(folder: Path) -> Heard:
    """By all processes."""
    found = Heard([], [], [])
    for path in folder.glob("*.heard"):
        for kind, part in _entries(path.read_bytes()):
            found[kind].append(part)
    return found


def install() -> None:
    """For as long as this process lives."""
    file = os.open(Path(os.environ[FOLDER_VARIABLE]) / f"{os.getpid()}.heard", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(kind: int, part: Any) -> None:
        body = bytes(part)
        os.write(file, HEAD.pack(kind, len(body)) + body)

    send, recv, make = zmq.Socket.send, zmq.Socket.recv, zmq.curve_keypair

    def noted_send(socket: Any, data: Any, *arguments: Any, **named: Any) -> Any:
        note(SENT, data)
        return send(socket, data, *arguments, **named)

    def noted_recv(socket: Any, *arguments: Any, **named: Any) -> Any:
        part = recv(socket, *arguments, **named)
        note(RECEIVED, part)
        return part

    def noted_make() -> tuple[bytes, bytes]:
        pair = make()
        note(SECRET, pair[1])
        return pair

    of_all: Any = zmq.Socket
    of_all.send, of_all.recv, zmq.curve_keypair = noted_send, noted_recv, noted_make


def _entries(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Up to the torn end of one that was killed, if it has one."""
    at = 0
    while at + HEAD.size <= len(data):
        kind, size = HEAD.unpack_from(data, at)
        at += HEAD.size + size
        if at <= len(data):
            yield kind, data[at - size : at]
