"""Access to the page: tokens, cookies, and the refusal of requests that other sites cause."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import NamedTuple

OWN_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
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
        """What is opened in a browser; `address` as in http://127.0.0.1:8000."""
        return f"{address}/?token={self.watch}" + (f"&control={self.control}" if control and self.control else "")

    def enters(self, request: PageRequest) -> bool:
        """Whether the request brings tokens by its link. They are exchanged for `cookies`, so that they are in no history."""
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
        """Why a request is refused; empty where it may pass."""
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
        """Whether the request comes with the token for the buttons."""
        return self.control is not None and same(request.cookies.get(self._control_cookie), self.control)

    def _refusal_to_control(self, request: PageRequest, origin: str | None) -> str:
        if origin is None:
            return "requests of other pages are refused"
        if request.headers.get("content-type") != "application/json":
            return "the body must be JSON"
        return "" if self.controls(request) else "this link only shows; open the other link that `headrace web` printed"


def same(given: str | None, token: str) -> bool:
    return given is not None and secrets.compare_digest(given.encode(), token.encode())
