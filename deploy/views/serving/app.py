"""The paths of a policy server, as an application of ASGI.

POST /act        an action for an observation, or actions for a batch; the same messages over a WebSocket at /act
GET  /policy     what serves: spaces, algorithm, versions
GET  /health     whether it serves
POST /promote    the version on trial answers all clients; after a rollback new versions are taken again
POST /rollback   the trial ends, or the version before serves again
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from msgspec import UNSET

from actors.envs.foreign.plain_data import encode
from deploy.views.serving.access import Access
from deploy.views.serving.messages import (
    BODY_BYTES,
    MOST_BODY_BYTES,
    MSGPACK,
    MSGPACKS,
    ActRequest,
    Greeting,
    Refusal,
    read_message,
)
from deploy.views.serving.service import PolicyService
from transport.text import say

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
PATHS = {"/act": "POST", "/policy": "GET", "/health": "GET", "/promote": "POST", "/rollback": "POST"}
BODY_SECONDS = GREETING_SECONDS = 5.0  # in which the body, and the first message of a WebSocket, must arrive
IDLE_SECONDS = 600.0  # after which a silent WebSocket is closed
MOST_CONNECTIONS = 512
GOING_AWAY, POLICY_VIOLATION, TRY_LATER = 1001, 1008, 1013  # RFC 6455, section 7.4.1, and IANA's register
KEPT_TIMES = 100_000  # of requests between two lines of the log
FAULT_SECONDS = 10.0  # between two lines about faults of this server's own


class App:
    """Answers requests until `stopping`, and then those that are under way."""

    def __init__(self, service: PolicyService, access: Access, describe: Callable[[], dict[str, Any]]) -> None:
        """`describe`: the answer of /policy."""
        self._service, self._access, self._describe = service, access, describe
        self.seconds: deque[float] = deque(maxlen=KEPT_TIMES)  # that answers took
        self.stopping = False
        self._sockets = self._busy = 0
        self._fault_said = -FAULT_SECONDS

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["type"] == "http":
            self._busy += 1
            try:
                await self._http(scope, headers, receive, send)
            finally:
                self._busy -= 1
        elif scope["type"] == "websocket":
            await self._websocket(scope, headers, receive, send)

    async def drain(self) -> None:
        """Returns when every request that has arrived is answered."""
        self.stopping = True
        while self._busy:
            await asyncio.sleep(0)

    async def _http(self, scope: Message, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        binary = headers.get("content-type", "").partition(";")[0].strip().lower() in MSGPACKS
        status, more = 200, self._access.cors(headers)
        try:
            self._access.check_site(headers)
            if scope["method"] == "OPTIONS" and more:
                await _answer(send, 204, b"", binary, more)
                return
            if not self._access.has_token(headers):
                raise Refusal(401, "the header `Authorization: Bearer TOKEN` is missing; see `headrace serve --help`")
            found = await self._find(scope, headers, receive, binary)
        except Refusal as refusal:
            status, found = refusal.status, {"error": refusal.text}
        except Exception as error:
            status, found = 500, self._fault(error)
        if status in (401, 403):
            await _discard(receive, BODY_BYTES)
        if status in (401, 403, 408, 413) or self.stopping:
            more = [*more, (b"connection", b"close")]
        await _answer(send, status, encode(found, binary), binary, more)

    async def _find(self, scope: Message, headers: Mapping[str, str], receive: Receive, binary: bool) -> dict[str, Any]:
        path = scope["path"]
        if path not in PATHS:
            raise Refusal(404, f"there is no such path: {', '.join(PATHS)}")
        if scope["method"] != PATHS[path]:
            raise Refusal(405, f"{path} takes {PATHS[path]}")
        if path == "/act":
            client = "{}:{}".format(*(scope.get("client") or ("", 0)))
            return await self._act(await self._body(headers, receive), binary, None, client)
        if path == "/policy":
            return self._describe()
        versions = self._service.versions
        if path == "/health":
            return {"status": "ok"}
        line = versions.promote() if path == "/promote" else versions.rollback()
        return {"message": line, "policy_version": versions.current.number}

    async def _act(self, data: bytes, binary: bool, own: str | None, client: str) -> dict[str, Any]:
        """`own`: the session of a WebSocket."""
        began = time.perf_counter()
        request = read_message(data, binary, ActRequest)
        name = request.session or (own if request.observations is UNSET else None)  # a batch is of several environments
        session = self._service.sessions.get(name) if name else None
        answer = await self._service.act(request, session, client)
        self._service.metrics.count("requests")
        self.seconds.append(time.perf_counter() - began)
        return answer

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        most = self._service.reader.most_bytes
        if (length := headers.get("content-length", "0")).isdecimal() and int(length) > most:
            await _discard(receive, MOST_BODY_BYTES)
            raise Refusal(413, f"a request has at most {most:,} bytes")
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "the request has no end")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        if message.get("more_body"):
                            await _discard(receive, MOST_BODY_BYTES)
                        raise Refusal(413, f"a request has at most {most:,} bytes")
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise Refusal(408, f"the request did not arrive within {BODY_SECONDS:g} s") from None

    async def _websocket(self, scope: Message, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        try:
            self._access.check_site(headers)
            known = self._access.has_token(headers)
            if scope["path"] != "/act":
                raise Refusal(404, "WebSockets are at /act")
            if self.stopping or self._sockets >= MOST_CONNECTIONS:
                raise Refusal(503, "there are too many connections")
        except Refusal as refusal:
            body = encode({"error": refusal.text}, False)
            start = {"type": "websocket.http.response.start", "status": refusal.status, "headers": _headers(body, False, [])}
            await send(start)
            await send({"type": "websocket.http.response.body", "body": body})
            return
        self._sockets += 1
        own = f"websocket {secrets.token_hex(8)}"  # no client can name it: names have no spaces
        try:
            await send({"type": "websocket.accept"})
            if not known and not await self._greeted(receive, send):
                return
            scope["state"]["authorised"]()
            await self._converse(own, receive, send)
        finally:
            self._sockets -= 1
            self._service.sessions.end(own)

    async def _greeted(self, receive: Receive, send: Send) -> bool:
        """Whether the first message has the token."""
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                message = await receive()
            if message["type"] == "websocket.disconnect":
                return False
            self._access.check_token(read_message(*_data(message), Greeting).token)
        except (Refusal, TimeoutError):
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "the first message must be the token"})
            return False
        return True

    async def _converse(self, own: str, receive: Receive, send: Send) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    message = await receive()
            except TimeoutError:
                await send({"type": "websocket.close", "code": GOING_AWAY, "reason": "silent for too long"})
                return
            if message["type"] == "websocket.disconnect":
                return
            self._busy += 1
            try:
                data, binary = _data(message)
                try:
                    found = await self._act(data, binary, own, own)
                except Refusal as refusal:
                    found = {"error": refusal.text, "status": refusal.status}
                except Exception as error:
                    found = self._fault(error) | {"status": 500}
                text = encode(found, binary)
                await send({"type": "websocket.send", **({"bytes": text} if binary else {"text": text.decode()})})
                if self.stopping:
                    await send({"type": "websocket.close", "code": GOING_AWAY, "reason": "the server ends"})
                    return
            finally:
                self._busy -= 1

    def _fault(self, error: Exception) -> dict[str, Any]:
        """The answer where this server itself has failed. A line tells its operator, not the client."""
        self._service.metrics.count("faults")
        if time.monotonic() - self._fault_said >= FAULT_SECONDS:
            self._fault_said = time.monotonic()
            say(f"a request failed: {type(error).__name__}: {error}")
        return {"error": "the server failed; its log says why"}


def _data(message: Message) -> tuple[bytes, bool]:
    text = message.get("text")
    return (message["bytes"], True) if text is None else (text.encode(), False)


def _headers(body: bytes, binary: bool, more: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    kind = MSGPACK.encode() if binary else b"application/json"
    length = (b"content-length", str(len(body)).encode())
    return [(b"content-type", kind), length, (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"), *more]


async def _discard(receive: Receive, most: int) -> None:
    """Reads a body, `most` bytes at the most: a connection that is closed before is reset, and the answer is lost."""
    with suppress(TimeoutError):
        async with asyncio.timeout(BODY_SECONDS):
            while most > 0 and (message := await receive()).get("more_body"):
                most -= len(message["body"])


async def _answer(send: Send, status: int, body: bytes, binary: bool, more: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": _headers(body, binary, more)})
    await send({"type": "http.response.body", "body": body})
