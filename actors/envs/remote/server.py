"""The server that programs connect to, and a session with one of them."""

from __future__ import annotations

import logging
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http import HTTPStatus
from typing import Any

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from actors.envs.base import ProgramLeft
from actors.envs.remote.messages import BrokenRules, Form, Hello, Outcome, OutcomeReader, encode, form_of, read_hello, read_spaces
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


class Session:
    """A program that has connected and was let in. Used by one thread."""

    def __init__(self, connection: ServerConnection, hello: Hello, form: Form, silence_seconds: float) -> None:
        """Raises BrokenRules."""
        self.hello, self._connection, self._form, self._silence_seconds = hello, connection, form, silence_seconds
        self.observation_space, self.action_space = read_spaces(hello)
        self.reader = OutcomeReader(hello, self.observation_space)
        self.waiting: Callable[[], AbstractContextManager[object]] = nullcontext  # is entered while it waits for the program
        self.peer = plain(str(connection.remote_address[0] if connection.remote_address else "?"))

    @property
    def name(self) -> str:
        return f"{plain(self.hello.name) or 'a program'} at {self.peer}"

    @property
    def environments(self) -> int:
        return self.hello.count

    def send(self, message: dict[str, Any]) -> None:
        """Raises ProgramLeft."""
        try:
            with self.waiting():
                self._connection.send(encode(message, self._form))
        except (ConnectionClosed, OSError) as error:
            raise ProgramLeft(_why(error)) from None

    def receive(self) -> Outcome:
        """Raises ProgramLeft."""
        try:
            with self.waiting():
                data = self._connection.recv(self._silence_seconds)
            return self.reader.read(data)
        except TimeoutError:
            raise self.refuse(f"silent for {self._silence_seconds:g} s", again=True) from None
        except (ConnectionClosed, OSError) as error:
            raise ProgramLeft(_why(error)) from None
        except BrokenRules as error:
            raise self.refuse(str(error)) from None

    def refuse(self, why: str, again: bool = False) -> ProgramLeft:
        self.dismiss(why, again)
        return ProgramLeft(why)

    def dismiss(self, why: str, again: bool = False) -> None:
        try:
            with self.waiting():
                self._connection.send(encode({"close": why, "again": again}, self._form))
        except (ConnectionClosed, OSError):
            pass


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
        session: type[Session] = Session,
    ) -> None:
        """`session`: what is made of a connection. `on_session` is called with it in a thread of its own, and the connection is
        closed when it returns; `on_refused` with a line about a connection that was not let in. Raises EnvError where it cannot
        listen there."""
        self._token, self._on_session, self._on_refused, self._silence_seconds = token, on_session, on_refused, silence_seconds
        self.ungreeted = self._connections = 0
        self._session = session
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
        if self._connections >= MOST_CONNECTIONS or self.ungreeted >= MOST_UNGREETED:
            return _answer(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")
        return None

    def _handle(self, connection: ServerConnection) -> None:
        limit = SEND_SECONDS * 1000 if WINDOWS else struct.pack("ll", SEND_SECONDS, 0)
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        with self._counted():
            session = self._greet(connection)
        if session is None:
            return
        with self._lock:
            self._connections += 1
        try:
            self._on_session(session)
        finally:
            with self._lock:
                self._connections -= 1

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self.ungreeted += 1
        try:
            yield
        finally:
            with self._lock:
                self.ungreeted -= 1

    def _greet(self, connection: ServerConnection) -> Session | None:
        try:
            data = connection.recv(GREETING_SECONDS)
        except (TimeoutError, ConnectionClosed, OSError):
            return None
        try:
            hello = read_hello(data)
            if not same(hello.token, self._token):
                raise BrokenRules("the token is wrong: it is in headrace/token of ~/.config, or in HEADRACE_TOKEN")
            return self._session(connection, hello, form_of(data), self._silence_seconds)
        except BrokenRules as error:
            self._on_refused(str(error))
            try:
                connection.send(encode({"close": str(error), "again": False}, form_of(data)))
                connection.close(REFUSED, "")
            except (ConnectionClosed, OSError):
                pass
            return None


def listen(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or re.fullmatch(r"127(\.\d{1,3}){3}", host) is not None


def _answer(status: HTTPStatus, text: str) -> Response:
    return Response(status, status.phrase, Headers({"Content-Type": "text/plain", "Connection": "close"}), text.encode())


def _why(error: Exception) -> str:
    if isinstance(error, ConnectionClosed):
        sent = error.rcvd
        return "it has closed the connection" if sent is not None else "the connection broke"
    return f"the connection broke: {error}"
