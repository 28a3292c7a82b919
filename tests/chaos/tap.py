"""A TCP proxy that lets everything through, remembers it, and can say it again."""

from __future__ import annotations

import contextlib
import socket
import threading

GREETING_BYTES = 64  # of ZMTP; libzmq hangs up on who says more before it has been greeted


class Tap:
    """Between a client and a server on loopback. Connect to `address`; `recorded` is complete once the block has ended."""

    def __init__(self, address: str) -> None:
        """`address`: the server's."""
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server((host, 0))
        self._listener.settimeout(0.1)
        self.address = f"tcp://{host}:{self._listener.getsockname()[1]}"
        self._passed: list[tuple[bool, bytes]] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Tap:
        self._threads[0].start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def recorded(self, to_server: bool) -> bytes:
        """All bytes of one direction, in order."""
        return b"".join(piece for direction, piece in self._passed if direction == to_server)

    def play_again(self) -> socket.socket:
        """Says to the server, over a new connection, what clients have said: close it when it has had time to be heard."""
        again = socket.create_connection(self._server, timeout=1)
        said = self.recorded(to_server=True)
        with contextlib.suppress(OSError):  # the server may hang up in the middle
            again.sendall(said[:GREETING_BYTES])
            left = GREETING_BYTES
            while left and (heard := again.recv(left)):
                left -= len(heard)
            again.sendall(said[GREETING_BYTES:])
        return again

    def _accept(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                client = self._listener.accept()[0]
                server = socket.create_connection(self._server)
                for source, target, to_server in ((client, server, True), (server, client, False)):
                    source.settimeout(0.1)
                    thread = threading.Thread(target=self._pass, args=(source, target, to_server))
                    self._threads.append(thread)
                    thread.start()

    def _pass(self, source: socket.socket, target: socket.socket, to_server: bool) -> None:
        with contextlib.suppress(OSError), source:
            while not self._over.is_set():
                with contextlib.suppress(TimeoutError):
                    if not (piece := source.recv(65536)):
                        break
                    self._passed.append((to_server, piece))
                    target.sendall(piece)
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)
