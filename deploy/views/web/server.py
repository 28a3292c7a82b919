"""The page of runs that may be up, on the loopback address. Files are read only while a page is open, and only what is new."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol, get_args

import msgspec
import uvicorn
from msgspec import Meta, Struct
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from actors.evaluation.video.kept import LIST
from deploy.recorded.run import RecordedRun
from deploy.reporting.new_lines import files_in
from deploy.views.connections import HOST, TimedProtocol
from deploy.views.web.access import Access, AccessMiddleware, page_request
from deploy.views.web.document import PageFollower
from deploy.views.web.look import shown
from deploy.views.web.report import PAGE, SCRIPTS, STYLES, linked
from deploy.views.web.videos import TYPE, video_file
from transport.files.documents import Damaged, decode
from transport.messages.control import Seen, What
from transport.messages.fields import MOST_KEYS, ActorName, KeyName
from transport.run_dir import RunDir

ACTOR = re.compile(r"actor-(0|[1-9][0-9]{0,3})")
TURN_SECONDS = 1.0
READ_SECONDS = 0.3  # spent on the files of many actors before the page is sent what has been read
SILENT_TURNS = 5  # after which the status is sent anyway: no file changes when a supervisor is killed
KEPT_RUNS = 4  # without an open page, whose history stays in memory
MOST_CONNECTIONS = 64
BODY_BYTES = 1000
MOST_STEERS_PER_SECOND, STEER_BURST_SECONDS = 100.0, 1.0  # of all pages together
FOUND_LINES = 1000
CLOSE_SECONDS = 2
BODY_SECONDS = 5.0


class ShownRuns(Protocol):
    """The runs that are shown. Its methods are called in other threads."""

    def all(self) -> Mapping[str, RunDir]:
        """By name, those of now."""

    def beside(self) -> Mapping[str, RunDir]:
        """By name, these and those in the same folders, of which only the settings are shown, to compare with."""

    def first(self) -> str | None:
        """The name of the run that is shown first."""


class Supervisors(Protocol):
    """The supervisors of the runs. The buttons return the result as a line; called in other threads."""

    def scale(self, run: RunDir, actors: int) -> str: ...

    def order(self, run: RunDir, what: What) -> str: ...

    def stop(self, run: RunDir) -> str: ...

    def look(self, run: RunDir, actor: str) -> tuple[Seen, Sequence[bytes]] | str:
        """The newest observation of an actor, with the raw parts of the message; or the reason why there is none, as a line."""

    def steer(self, run: RunDir, steering: Steering) -> tuple[Seen, Sequence[bytes]] | str:
        """Does in an actor what a person presses. Gives what that leads to, as `look` does."""


class Steering(Struct, frozen=True, forbid_unknown_fields=True):
    """What a page sends while its person steers. `person`: a random number, which identifies the page."""

    actor: ActorName
    person: Annotated[int, Meta(ge=0, lt=2**53)]
    keys: Annotated[tuple[KeyName, ...], Meta(max_length=MOST_KEYS)] = ()
    ends: bool = False


class WatchedRun:
    """A run that open pages show."""

    def __init__(self, run: RunDir) -> None:
        self.recorded, self.identity = RecordedRun(run), run.identity
        self.lock = threading.Lock()
        self.pages = 0

    def whole(self, follower: PageFollower) -> bytes:
        """The document of what has been read. Reading a long run for the first time takes seconds, which is left to `news`."""
        with self.lock:
            return msgspec.json.encode(follower.whole())

    def news(self, follower: PageFollower, written: bool = True) -> tuple[bytes, bool]:
        """Returns what this page has not seen, and whether there is more to read. `written`: whether a file has changed; if not,
        nothing is read, but the supervisor may have been killed."""
        with self.lock:
            more = written and self.recorded.read(READ_SECONDS)
            return msgspec.json.encode(follower.news() | {"more": more}), more


RunHandler = Callable[["Page", Request, RunDir], Awaitable[Response]]


def of_run(handler: RunHandler) -> Callable[[Page, Request], Awaitable[Response]]:
    """Gives the handler the run that a request names: one of those that are shown, never a path."""

    async def handle(page: Page, request: Request) -> Response:
        runs = await run_in_threadpool(page.runs.all)
        run = runs.get(request.query_params.get("run", ""))
        return no_run() if run is None else await handler(page, request, run)

    return handle


class Page:
    """The handlers of all paths."""

    def __init__(self, runs: ShownRuns, actions: Supervisors, access: Access, ending: Callable[[], bool]) -> None:
        self.runs, self._actions, self._access, self._ending = runs, actions, access, ending
        self._watched: OrderedDict[str, WatchedRun] = OrderedDict()
        self._next_steer = 0.0  # when one more may come: later than now where there were too many
        self._texts = {name: (PAGE / name).read_bytes() for name in (*SCRIPTS, *STYLES)}
        self._index = linked()

    def app(self) -> ASGIApp:
        routes = [
            Route("/", self._page),
            Route("/page/{name:path}", self._file),
            Route("/favicon.ico", self._icon),
            Route("/api/runs", self._list),
            Route("/api/events", self._events),
            Route("/api/search", self._search),
            Route("/api/settings", self._settings),
            Route("/api/video", self._video),
            Route("/api/look", self._look),
            Route("/api/steer", self._steer, methods=["POST"]),
            Route("/api/scale", self._scale, methods=["POST"]),
            *(Route(f"/api/{what}", self._order, methods=["POST"]) for what in get_args(What)),
            Route("/api/stop", self._stop, methods=["POST"]),
        ]
        return AccessMiddleware(Starlette(routes=routes), self._access)

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(self._index)

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._texts:
            return PlainTextResponse("there is no such file\n", 404)
        return Response(self._texts[name], media_type="text/css" if name in STYLES else "text/javascript")

    async def _icon(self, request: Request) -> Response:
        """Nothing: a browser that has not read the page yet may ask for its icon here."""
        return Response(status_code=204)

    async def _list(self, request: Request) -> Response:
        names, beside, first = await run_in_threadpool(
            lambda: (list(self.runs.all()), list(self.runs.beside()), self.runs.first())
        )
        found = {
            "runs": [{"name": name} for name in names],
            "beside": beside,
            "first": first,
            "controls": self._access.controls(page_request(request)),
        }
        return JSONResponse(found)

    @of_run
    async def _search(self, request: Request, run: RunDir) -> Response:
        lines = await run_in_threadpool(RecordedRun(run).search, request.query_params.get("text", ""), FOUND_LINES)
        return JSONResponse({"lines": lines})

    async def _settings(self, request: Request) -> Response:
        run = (await run_in_threadpool(self.runs.beside)).get(request.query_params.get("run", ""))
        if run is None:
            return no_run()
        found = await run_in_threadpool(RecordedRun(run).settings)
        return Response(
            msgspec.json.encode({"settings": [one._asdict() for one in found]}), media_type="application/json"
        )  # JSONResponse refuses inf

    @of_run
    async def _video(self, request: Request, run: RunDir) -> Response:
        path = await run_in_threadpool(video_file, run, request.query_params.get("file", ""))
        # A browser asks for parts of a video, by Range, which FileResponse answers.
        return PlainTextResponse("there is no such video\n", 404) if path is None else FileResponse(path, media_type=TYPE)

    @of_run
    async def _look(self, request: Request, run: RunDir) -> Response:
        actor = request.query_params.get("actor", "")
        if not ACTOR.fullmatch(actor):
            return JSONResponse({"message": "there is no such actor"}, 404)
        return await self._pictures(run, await run_in_threadpool(self._actions.look, run, actor))

    async def _pictures(self, run: RunDir, found: tuple[Seen, Sequence[bytes]] | str) -> Response:
        answer = {"message": found} if isinstance(found, str) else await run_in_threadpool(shown, run, *found)
        return Response(msgspec.json.encode(answer), media_type="application/json")  # JSONResponse refuses nan

    @of_run
    async def _events(self, request: Request, run: RunDir) -> Response:
        return StreamingResponse(self._stream(run, request.is_disconnected), media_type="text/event-stream")

    async def _stream(self, run: RunDir, left: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
        """Server-sent events: `whole` once, then `news` while the run goes on; `gone` when its folder is removed or, as after
        `--fresh`, another one is in its place: a page that asks again is shown that one from its beginning."""
        watched = self._watch(run)
        watched.pages += 1
        follower, silent, seen, more = PageFollower(watched.recorded), 0, None, False
        try:
            if watched.identity is not None:
                yield b"event: whole\ndata: " + await run_in_threadpool(watched.whole, follower) + b"\n\n"
            while True:
                over = self._ending() or await left()  # asked first, so that the last news is still sent
                if watched.identity is None or run.identity != watched.identity:
                    self._watched.pop(str(run.path), None)  # a later folder may have the inode of one that was deleted
                    yield b"event: gone\ndata: {}\n\n"
                    return
                changed = await run_in_threadpool(stamps, run)
                silent += 1
                written = more or changed != seen
                if written or silent >= SILENT_TURNS:
                    news, more = await run_in_threadpool(watched.news, follower, written)
                    if run.identity != watched.identity:  # while it was read
                        continue
                    yield b"event: news\ndata: " + news + b"\n\n"
                    seen, silent = changed, 0
                if over:
                    return
                if not more:
                    await asyncio.sleep(TURN_SECONDS)
        finally:
            watched.pages -= 1

    def _watch(self, run: RunDir) -> WatchedRun:
        """The history of a run: in memory already, or to be read.

        Of the runs without an open page, the last KEPT_RUNS stay in memory.
        """
        key = str(run.path)
        found = self._watched.get(key)
        if found is None or run.identity != found.identity:
            found = self._watched[key] = WatchedRun(run)
        self._watched.move_to_end(key)
        for old in [old for old, one in self._watched.items() if not one.pages][:-KEPT_RUNS]:
            del self._watched[old]
        return found

    @of_run
    async def _steer(self, request: Request, run: RunDir) -> Response:
        try:
            steering = msgspec.convert(await read_body(request), Steering)
        except msgspec.ValidationError:
            return JSONResponse({"message": "that is not what a page sends that steers"}, 400)
        now = time.monotonic()
        if not steering.ends and now < self._next_steer:
            return JSONResponse({"message": f"more than {MOST_STEERS_PER_SECOND:.0f} messages in a second"}, 429)
        self._next_steer = max(now - STEER_BURST_SECONDS, self._next_steer) + 1 / MOST_STEERS_PER_SECOND
        return await self._pictures(run, await run_in_threadpool(self._actions.steer, run, steering))

    @of_run
    async def _scale(self, request: Request, run: RunDir) -> Response:
        actors = (await read_body(request)).get("actors")
        if not isinstance(actors, int) or isinstance(actors, bool):
            return JSONResponse({"message": "actors must be a whole number"}, 400)
        return JSONResponse({"message": await run_in_threadpool(self._actions.scale, run, actors)})

    @of_run
    async def _order(self, request: Request, run: RunDir) -> Response:
        what: Any = request.url.path.rpartition("/")[2]
        return JSONResponse({"message": await run_in_threadpool(self._actions.order, run, what)})

    @of_run
    async def _stop(self, request: Request, run: RunDir) -> Response:
        return JSONResponse({"message": await run_in_threadpool(self._actions.stop, run)})


def stamps(run: RunDir) -> list[tuple[str, int, int]]:
    """Times and sizes of the files that the page shows: they differ after any of these has changed."""
    paths = [
        run.status,
        run.events,
        run.log("run"),
        run.config,
        run.videos / LIST,
        *files_in(run.metrics("replay").parent, "*.jsonl"),
    ]
    found = []
    for path in paths:
        try:
            one = path.stat()
        except OSError:
            continue
        found.append((path.name, one.st_mtime_ns, one.st_size))
    return sorted(found)


async def read_body(request: Request) -> dict[str, Any]:
    """A small JSON object; empty for anything else, and for one that does not arrive in time."""
    data = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                data += part
                if len(data) > BODY_BYTES:
                    return {}
        return decode(data, dict[str, Any])
    except (Damaged, TimeoutError):
        return {}


def no_run() -> Response:
    return JSONResponse({"message": "there is no such run"}, 404)


class WebServer:
    """Serves the page until `stop`."""

    def __init__(self, runs: ShownRuns, actions: Supervisors, read_only: bool = False, port: int = 0) -> None:
        """Binds; `port` 0 is any free one. Raises OSError."""
        self.access = Access(read_only)
        self._socket = socket.create_server((HOST, port))
        page = Page(runs, actions, self.access, lambda: self._server.should_exit)
        self._server = uvicorn.Server(
            uvicorn.Config(
                page.app(),
                http=TimedProtocol,
                log_config=None,
                access_log=False,
                ws="none",
                lifespan="off",
                server_header=False,
                limit_concurrency=MOST_CONNECTIONS,
                timeout_graceful_shutdown=CLOSE_SECONDS,
            )
        )

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self._socket.getsockname()[1]}"

    def serve(self) -> None:
        """Returns when it is told to stop, or by Ctrl-C."""
        try:
            self._server.run(sockets=[self._socket])
        except KeyboardInterrupt:
            pass
        finally:
            self._socket.close()

    def stop(self) -> None:
        """May be called by any thread."""
        self._server.should_exit = True
