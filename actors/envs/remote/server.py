"""The server that programs connect to."""

from __future__ import annotations

import logging
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from actors.envs.foreign.plain_data import encode
from actors.envs.remote.messages import InvalidMessage, read_hello
from actors.envs.remote.session import Session
from actors.errors import EnvError
from transport.files.token import same
from transport.files.writing import WINDOWS
from transport.text import plain

GREETING_SECONDS = 10.0  # for the handshake, and again for the hello
MOST_CONNECTIONS = 1_100
MOST_UNGREETED = 32
MESSAGE_BYTES = 8_000_000
CLOSE_SECONDS = 2.0
REFUSED = 1008  # the code of WebSocket
PING_SECONDS = 20.0  # so that programs notice a broken network
SEND_SECONDS = 10  # for which a program may not read before its connection is broken

logging.getLogger("websockets.server").setLevel(logging.CRITICAL)  # a port scan is no event; what counts is said in `on_refused`


class SessionServer:
    """Listens until `close`. Each connection has threads of its own."""

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        on_session: Callable[[Session], None],
        on_refused: Callable[[str], None] = lambda line: None,
        silence_seconds: float = 60.0,
        origins: tuple[str, ...] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`on_session` is called with each session, in a thread of its own; the connection is closed when it returns.
        `on_refused` is called with a line about each connection that is refused. Raises EnvError where it cannot listen there."""
        self._token, self._on_session, self._on_refused, self._silence_seconds = token, on_session, on_refused, silence_seconds
        self._connections = 0
        self.ungreeted: set[int] = set()  # threads of connections that have not shown the token
        self._lock = threading.Lock()
        self._origins = frozenset(origins)
        try:
            self._socket = listen(*address)
        except OSError as error:
            raise EnvError(
                f"cannot listen on {address[0]} port {address[1]} ({error.strerror or error}): another run may be up there; "
                "--env.port takes another"
            ) from None
        self.port = int(self._socket.getsockname()[1])
        self._server = serve(
            self._handle,
            sock=self._socket,
            ssl=tls,
            compression=None,
            process_request=self._check_request,
            server_header=None,
            open_timeout=GREETING_SECONDS,
            close_timeout=CLOSE_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=None,  # a program of one thread answers after its step: how long that may take, silence_seconds says
            max_size=MESSAGE_BYTES,
            max_queue=2,
        )
        self._server.handler = self._limited(self._server.handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Closes all connections, and waits for the threads of sessions."""
        self._server.shutdown()
        self._thread.join()

    def _check_request(self, connection: ServerConnection, request: Request) -> Response | None:
        origin = request.headers.get("Origin")
        if origin is not None and origin not in self._origins:
            self._on_refused(f"a page of {plain(origin)[:80]}: --env.origins allows one")
            return _answer(HTTPStatus.FORBIDDEN, "pages of this origin are refused: --env.origins allows one\n")
        return None

    def _limited(self, handler: Callable[[socket.socket, Any], None]) -> Callable[[socket.socket, Any], None]:
        """Wraps websockets' handler, which handles a connection from its handshake to its end, so that connections count."""

        def handle(connection: socket.socket, address: Any) -> None:
            thread = threading.get_ident()
            with self._lock:
                if self._connections >= MOST_CONNECTIONS or len(self.ungreeted) >= MOST_UNGREETED:
                    connection.close()  # the handler then ends at once; without it websockets would not forget this thread
                self._connections += 1
                self.ungreeted.add(thread)
            try:
                handler(connection, address)
            finally:
                with self._lock:
                    self._connections -= 1
                    self.ungreeted.discard(thread)

        return handle

    def _handle(self, connection: ServerConnection) -> None:
        limit = SEND_SECONDS * 1000 if WINDOWS else struct.pack("ll", SEND_SECONDS, 0)
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        session = self._greet(connection)
        if session is not None:
            with self._lock:
                self.ungreeted.discard(threading.get_ident())
            self._on_session(session)

    def _greet(self, connection: ServerConnection) -> Session | None:
        try:
            data = connection.recv(GREETING_SECONDS)
        except (TimeoutError, ConnectionClosed, OSError):
            return None
        try:
            hello = read_hello(data)
            if not same(hello.token, self._token):
                raise InvalidMessage("the token is wrong: it is in headrace/token of ~/.config, or in HEADRACE_TOKEN")
            return Session(connection, hello, isinstance(data, bytes), self._silence_seconds)
        except InvalidMessage as error:
            self._on_refused(str(error))
            try:
                answer = encode({"close": str(error), "again": False}, isinstance(data, bytes))
                connection.send(answer, text=isinstance(data, str))
                connection.close(REFUSED, "")
            except (ConnectionClosed, OSError):
                pass
            return None


def listen(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def _answer(status: HTTPStatus, text: str) -> Response:
    return Response(status, status.phrase, Headers({"Content-Type": "text/plain", "Connection": "close"}), text.encode())
