"""Access to the page: tokens, cookies, and the refusal of requests that other sites cause."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from deploy.views.connections import OWN_HOST

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; media-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
ENTER = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=/"><title>Headrace</title>'


class PageRequest(NamedTuple):
    """A request. The names of `headers` are in small letters."""

    method: str
    path: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    cookies: Mapping[str, str]


class Access:
    """The tokens of a server, which are new at each start. `control` is the token for the buttons, None without buttons."""

    def __init__(self, read_only: bool) -> None:
        self.watch = secrets.token_urlsafe(24)
        self.control = None if read_only else secrets.token_urlsafe(24)
        name = secrets.token_hex(4)  # of this server: cookies do not belong to a port
        self._watch_cookie, self._control_cookie = f"headrace-{name}", f"headrace-{name}-control"

    def link(self, address: str, control: bool = False) -> str:
        """The link for a browser; `address` as in http://127.0.0.1:8000."""
        return f"{address}/?token={self.watch}" + (f"&control={self.control}" if control and self.control else "")

    def enters(self, request: PageRequest) -> bool:
        """True for a request with tokens in its link. They are exchanged for `cookies`, so that they are in no history."""
        return request.method == "GET" and request.path == "/" and "token" in request.query

    def cookies(self, request: PageRequest) -> dict[str, str]:
        """The cookies for the tokens of a link; none for a wrong one."""
        if not same(request.query.get("token"), self.watch):
            return {}
        found = {self._watch_cookie: self.watch}
        if self.control and same(request.query.get("control"), self.control):
            found[self._control_cookie] = self.control
        return found

    def refusal(self, request: PageRequest) -> str:
        """The reason to refuse a request; empty where it may pass."""
        host = request.headers.get("host", "")
        if not OWN_HOST.fullmatch(host):  # a foreign name that resolves to this machine
            return "this server answers to 127.0.0.1 and localhost only"
        origin = request.headers.get("origin")
        if origin not in (None, f"http://{host}"):
            return "requests of other pages are refused"
        if self.enters(request):
            return (
                ""
                if self.cookies(request)
                else "the token is not the one of this start; open the link that `headrace web` printed"
            )
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "requests of other pages are refused"
        if not same(request.cookies.get(self._watch_cookie), self.watch):
            return "open the link that `headrace web` printed"
        if request.method == "POST":
            return self._refusal_to_control(request, origin)
        return "" if request.method in ("GET", "HEAD") else "only GET and POST are answered"

    def controls(self, request: PageRequest) -> bool:
        """True for a request with the token for the buttons."""
        return self.control is not None and same(request.cookies.get(self._control_cookie), self.control)

    def _refusal_to_control(self, request: PageRequest, origin: str | None) -> str:
        if origin is None:
            return "requests of other pages are refused"
        if request.headers.get("content-type") != "application/json":
            return "the body must be JSON"
        return "" if self.controls(request) else "this link only shows; open the other link that `headrace web` printed"


def same(given: str | None, token: str) -> bool:
    return given is not None and secrets.compare_digest(given.encode(), token.encode())


def page_request(request: Request) -> PageRequest:
    return PageRequest(request.method, request.url.path, dict(request.headers), dict(request.query_params), request.cookies)


class AccessMiddleware:
    """Refuses requests without a token and those of other sites; adds the headers of all answers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = page_request(Request(scope))

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((name.encode(), value.encode()) for name, value in HEADERS.items())]
            await send(message)

        if reason := self._access.refusal(request):
            return await PlainTextResponse(f"{reason}\n", 403)(scope, receive, with_headers)
        if self._access.enters(request):
            # A page that goes on by itself, not a redirect: a strict cookie does not come along on a redirect from another site.
            answer = HTMLResponse(ENTER)
            for name, value in self._access.cookies(request).items():
                answer.set_cookie(name, value, httponly=True, samesite="strict")
            return await answer(scope, receive, with_headers)
        await self._app(scope, receive, with_headers)
