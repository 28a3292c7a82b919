"""Who may ask: the account's token, and no page of another site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deploy.views.connections import OWN_HOST
from deploy.views.serving.messages import Refusal
from transport.files.token import same

BEARER = "Bearer "
CORS = (
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, content-type"),
    (b"access-control-max-age", b"600"),
)


class Access:
    """Refuses requests by their headers, whose names are in small letters."""

    def __init__(self, token: str, origins: Sequence[str], loopback: bool) -> None:
        """`origins`: sites whose pages may ask. `loopback`: only this machine reaches the server, so it has no other name."""
        self._token, self._origins, self._loopback = token, frozenset(origins), loopback

    def check_site(self, headers: Mapping[str, str]) -> None:
        """Raises Refusal for a page of another site, and for another name of this machine, which such a page can make."""
        if self._loopback and not OWN_HOST.fullmatch(headers.get("host", "")):
            raise Refusal(403, "this server answers to 127.0.0.1 and localhost only")
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins:
            raise Refusal(403, "requests of other sites' pages are refused; `headrace serve --origin` allows a site")
        if origin is None and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Refusal(403, "requests of other sites' pages are refused")

    def has_token(self, headers: Mapping[str, str]) -> bool:
        """Raises Refusal for a wrong one; False without any."""
        found = headers.get("authorization")
        if found is None:
            return False
        self.check_token(found[len(BEARER) :] if found.startswith(BEARER) else "")
        return True

    def check_token(self, token: str) -> None:
        """Raises Refusal."""
        if not same(token, self._token):
            raise Refusal(401, "the token is not the one of this account; see `headrace serve --help`")

    def cors(self, headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        """Headers that let a browser show an answer to a page of an allowed site."""
        origin = headers.get("origin")
        if origin not in self._origins:
            return []
        return [(b"access-control-allow-origin", str(origin).encode()), (b"vary", b"origin"), *CORS]
