"""ZeroMQ's protocol by hand (ZMTP 3.1, no keys), to send what no library would."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
MORE, LONG, COMMAND = 1, 2, 4


def frame(body: bytes, flags: int = 0, claimed: int | None = None) -> bytes:
    """One frame; `claimed` is the length that its head says."""
    length = len(body) if claimed is None else claimed
    head = struct.pack(">BB", flags, length) if length < 256 else struct.pack(">BQ", flags | LONG, length)
    return head + body


def message(parts: Sequence[bytes]) -> bytes:
    """A whole message."""
    return b"".join(frame(part, MORE if index < len(parts) - 1 else 0) for index, part in enumerate(parts))


class Raw:
    """A connection to a server, by ipc or tcp."""

    def __init__(self, address: str, kind: bytes = b"DEALER", shake: bool = True) -> None:
        """`shake` False: connects, and says nothing."""
        scheme, _, where = address.partition("://")
        if scheme == "ipc":
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(where)
        else:
            host, _, port = where.rpartition(":")
            self.socket = socket.create_connection((host, int(port)))
        self.socket.settimeout(10)
        if shake:
            try:
                self._shake(kind)
            except OSError:
                self.socket.close()
                raise

    def _shake(self, kind: bytes) -> None:
        self.socket.sendall(GREETING)
        self.receive(len(GREETING))
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
        self.socket.sendall(frame(ready, COMMAND))

    def receive(self, count: int) -> bytes:
        """Exactly so many bytes; raises ConnectionError where there are fewer."""
        found = b""
        while len(found) < count:
            more = self.socket.recv(count - len(found))
            if not more:
                raise ConnectionError("closed by the server")
            found += more
        return found

    def send(self, *parts: bytes) -> None:
        """One message."""
        self.socket.sendall(message(parts))

    def gone(self, seconds: float) -> bool:
        """Whether the server hangs up within that time, whatever it says before."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        """Hangs up."""
        self.socket.close()
