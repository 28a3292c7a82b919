"""The process of `headrace serve`: sockets, signals, the thread that looks for new versions, and the log."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from actors.envs.spaces import describe_space
from deploy.views.connections import TimedProtocol
from deploy.views.serving.access import Access
from deploy.views.serving.app import MOST_CONNECTIONS, App
from deploy.views.serving.recording import Recording
from deploy.views.serving.service import PolicyService
from deploy.views.serving.sources import BadVersion, PolicyInfo, Source
from deploy.views.serving.version import reason_of
from deploy.views.serving.versions import Versions
from transport.metrics import Metrics
from transport.system import in_url, is_loopback, is_wildcard
from transport.text import say

HEADER_BYTES = 16 << 10
NEXT_SECONDS = 60.0  # of silence after which a connection is closed
LOOK_SECONDS = 0.2  # between two looks for a new version
POLL_SECONDS = 0.02  # between two polls of replay
LINE_SECONDS = 10.0
CLOSE_SECONDS = 5
HANGUP_SECONDS = 2.0  # for a client to answer the end of a WebSocket


class Tls(NamedTuple):
    certificate: str
    key: str


class ServedHttp(TimedProtocol):
    """One connection over the limit closes at once."""

    next_seconds = NEXT_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()


class ServedWebSocket(WebSocketsSansIOProtocol):
    """Takes little from a client that has not shown the token."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.close_timeout = HANGUP_SECONDS
        self._unauthorised_bytes: int | None = 0
        self.app_state = self.app_state | {"authorised": self._authorise}

    def data_received(self, data: bytes) -> None:
        if self._unauthorised_bytes is not None:
            self._unauthorised_bytes += len(data)
            if self._unauthorised_bytes > 2 * HEADER_BYTES:
                self.transport.abort()
                return
        super().data_received(data)

    def _authorise(self) -> None:
        self._unauthorised_bytes = None


class _Server(uvicorn.Server):
    """Answers what has arrived before it closes connections. Signals are its caller's."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._app.drain()
        await super().shutdown(sockets)


class PolicyServer:
    """Serves a policy until `stop`."""

    def __init__(
        self,
        source: Source,
        versions: Versions,
        recording: Callable[[int], Recording | None],
        token: str,
        address: str,
        port: int,
        origins: Sequence[str] = (),
        tls: Tls | None = None,
        say: Callable[[str], None] = say,
    ) -> None:
        """Binds; `port` 0 is any free one. `recording` makes the recording of a server at that port. Raises OSError, also
        ssl.SSLError, and what `recording` raises."""
        self._source, self._versions, self._say, self._tls, self._host = source, versions, say, tls, address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, port), family=family, backlog=MOST_CONNECTIONS)
        try:
            self.port = int(self._socket.getsockname()[1])
            self.recording = recording(self.port)
            self.metrics = Metrics()
            self._service = PolicyService(source.about, versions, self.recording, self.metrics)
            self._app = App(self._service, Access(token, origins, is_loopback(address)), self.describe)
            self._server = _Server(self._config(), self._app)
        except BaseException:
            self._socket.close()
            raise
        self._ended = threading.Event()

    def _config(self) -> uvicorn.Config:
        config = uvicorn.Config(
            self._app,  # type: ignore[arg-type]
            http=ServedHttp,
            ws=ServedWebSocket,
            ws_max_size=self._service.reader.most_bytes,
            ws_per_message_deflate=False,
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            server_header=False,
            h11_max_incomplete_event_size=HEADER_BYTES,
            timeout_keep_alive=int(NEXT_SECONDS),
            timeout_graceful_shutdown=CLOSE_SECONDS,
            ssl_certfile=self._tls.certificate if self._tls else None,
            ssl_keyfile=self._tls.key if self._tls else None,
        )
        config.load()
        if config.ssl is not None:
            config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
        return config

    @property
    def address(self) -> str:
        host = socket.gethostname() if is_wildcard(self._host) else in_url(self._host)
        return f"http{'s' if self._tls else ''}://{host}:{self.port}"

    @property
    def about(self) -> PolicyInfo:
        return self._source.about

    @property
    def serving(self) -> str:
        """The version that serves."""
        return self._versions.current.name

    @property
    def needs_session(self) -> bool:
        """True if each request needs a session."""
        return self._service.needs_session

    @property
    def stopping(self) -> bool:
        """True when it answers only what has arrived."""
        return self._app.stopping

    def serve(self) -> None:
        """Returns when it is told to stop."""
        try:
            asyncio.run(self._run())
        finally:
            self._socket.close()
            if self.recording is not None:
                sink = self.recording.sink
                sink.close()
                self._say(f"recorded {sink.steps:,} steps, dropped {sink.dropped:,} chunks")

    def stop(self) -> None:
        """May be called by any thread, and by a signal."""
        self._server.should_exit = True

    def describe(self) -> dict[str, Any]:
        """What serves, for clients."""
        about, recording = self._source.about, self.recording
        found = {
            "run": about.run,
            "env": about.env,
            "algorithm": about.algorithm,
            "policy_version": self._versions.current.number,
            "observation_space": describe_space(about.observation_space),
            "action_space": describe_space(about.action_space),
            "needs_session": self._service.needs_session,
            "versions": self._versions.describe(),
        }
        if recording is not None:
            sink = recording.sink
            found["recording"] = {"steps": sink.steps, "dropped_chunks": sink.dropped, "fault": sink.fault or None}
        return found

    async def _run(self) -> None:
        look = threading.Thread(target=self._look, args=(asyncio.get_running_loop(),), name="versions", daemon=True)
        look.start()
        tasks = [asyncio.create_task(self._maintain()), asyncio.create_task(self._report())]
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._ended.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._service.sessions.end_all()
            await asyncio.to_thread(look.join, CLOSE_SECONDS)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Looks for new versions and tries them, in a thread of its own: both may take long."""
        versions = self._versions
        while not self._ended.wait(LOOK_SECONDS):
            call: Callable[[], None] | None = None
            try:
                version = self._source.newer()
                if version is not None:
                    fault = version.fault(self._service.probes())
                    call = partial(versions.refuse, version.name, fault) if fault else partial(versions.offer, version)
            except BadVersion as error:
                call = partial(versions.refuse, error.name, str(error))
            except Exception as error:  # a reason to tell, and not to end
                call = partial(versions.refuse, "a new version", reason_of(error))
            if call is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(call)

    async def _maintain(self) -> None:
        fault = ""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self._service.sessions.forget()
            if self.recording is not None:
                self.recording.poll()
                if self.recording.sink.fault != fault:
                    fault = self.recording.sink.fault
                    self._say(f"no more experience is recorded: {fault}")

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(LINE_SECONDS)
            record = self.metrics.record()
            seconds = np.array(self._app.seconds)
            self._app.seconds.clear()
            if not len(seconds):
                continue
            p50, p99 = np.percentile(seconds, [50, 99]) * 1000
            line = (
                f"{len(seconds) / LINE_SECONDS:,.0f} requests/s · {record.get('rows_per_pass', 0):.1f} rows a pass"
                f" · computing {record.get('infer_fraction', 0):.0%} · {p50:.2f} ms, 99 % within {p99:.2f} ms"
                f" · sessions {len(self._service.sessions):,} · policy v{self._versions.current.number}"
            )
            if self.recording is not None:
                line += f" · recorded {self.recording.sink.steps:,} steps, dropped {self.recording.sink.dropped:,} chunks"
            self._say(line)
