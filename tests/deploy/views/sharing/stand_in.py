"""A server that answers as a model repository does, as far as `headrace push` asks, and keeps every request."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

OWN, FOREIGN = "me/policy", "somebody/policy"  # repositories: of the token's account, and of another


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class StandIn:
    """`private`: of the repositories that there are."""

    def __init__(self, token: str, private: dict[str, bool]) -> None:
        self.token, self.private, self.requests = token, private, list[Request]()
        self.url = ""
        self.files: dict[str, bytes] = {}  # of the public repository OWN, which needs no token

    def file(self, path: str) -> bytes | None:
        """What a path of a file leads to."""
        before, _, name = path.partition(f"/{OWN}/resolve/")
        return self.files.get(name.partition("/")[2]) if name and not before else None

    def answer(self, request: Request) -> tuple[int, Any]:
        if request.path.startswith("/lfs/"):  # the address itself allows to write: it is sent no token
            return 200, {}
        if self.files and request.path.startswith(f"/api/models/{OWN}"):
            siblings = [{"rfilename": name, "size": len(content)} for name, content in self.files.items()]
            if "/tree/" in request.path:
                tree = [
                    {"type": "file", "path": name, "size": len(content), "oid": "b" * 40} for name, content in self.files.items()
                ]
                return 200, tree
            return 200, {"id": OWN, "modelId": OWN, "private": False, "sha": "a" * 40, "siblings": siblings, "tags": []}
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return 401, {"error": "Invalid credentials"}
        path = request.path.partition("?")[0]
        if path == "/api/repos/create":
            owner = request.json.get("organization") or OWN.partition("/")[0]
            name = f"{owner}/{request.json['name']}"
            if name == FOREIGN:
                return 403, {"error": "You don't have the rights"}
            if name in self.private:
                return 409, {"url": f"{self.url}/{name}", "error": "You already created this model repo"}
            self.private[name] = bool(request.json.get("private")) or request.json.get("visibility") == "private"
            return 200, {"url": f"{self.url}/{name}", "name": name}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path.endswith("/info/lfs/objects/batch"):
            found = [
                {"oid": one["oid"], "size": one["size"], "actions": {"upload": {"href": f"{self.url}/lfs/{one['oid']}"}}}
                for one in request.json["objects"]
            ]
            return 200, {"transfer": "basic", "objects": found}
        name = "/".join(path.split("/")[3:5])
        if not path.startswith("/api/models/") or name not in self.private:
            return 404, {"error": "not here"}
        if "/preupload/" in path:
            modes = [
                {"path": one["path"], "uploadMode": "regular" if one["path"].endswith(".md") else "lfs", "shouldIgnore": False}
                for one in request.json["files"]
            ]
            return 200, {"files": modes}
        if "/commit/" in path:
            return 200, {"success": True, "commitOid": "c" * 40, "commitUrl": f"{self.url}/{name}/commit/{'c' * 40}"}
        if path.endswith("/settings"):
            self.private[name] = request.json.get("private", request.json.get("visibility") == "private")
            return 200, {}
        return 200, {"id": name, "modelId": name, "private": self.private[name], "sha": "a" * 40, "siblings": [], "tags": []}

    def of(self, end: str) -> list[Request]:
        """The requests to paths with this in them."""
        return [request for request in self.requests if end in request.path]


@contextmanager
def serving(token: str, private: dict[str, bool]) -> Iterator[StandIn]:
    """A server on a port that the system chooses, until the end of the block."""
    stand_in = StandIn(token, private)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            if headers.get("transfer-encoding") == "chunked":
                body = b"".join(iter(self.chunk, b""))
            request = Request(self.command, self.path, headers, body)
            stand_in.requests.append(request)
            if (content := stand_in.file(self.path)) is not None:
                status, data, kind = 200, content, "application/octet-stream"
            elif f"/{OWN}/resolve/" in self.path:
                status, data, kind = 404, b"", "text/plain"
            else:
                status, said = stand_in.answer(request)
                data, kind = json.dumps(said).encode(), "application/json"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", "a" * 40)
            if status == 404:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_HEAD = answer

        def chunk(self) -> bytes:
            data = self.rfile.read(int(self.rfile.readline(), 16))
            self.rfile.readline()
            return data

        def log_message(self, format: str, *given: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stand_in.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield stand_in
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
