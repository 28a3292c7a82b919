"""Decides which keys may connect (ZeroMQ's authentication protocol, ZAP), and counts failed handshakes."""

from __future__ import annotations

import itertools
import struct
import threading
import time
from collections.abc import Callable

import zmq
from zmq.utils import z85

from transport.sockets.keys import KeysError, Pair

ZAP_ADDRESS = "inproc://zeromq.zap.01"  # where libzmq sends its requests: RFC 27
WATCH_SECONDS, POLL_MS = 0.5, 100
WARN_SECONDS = 60.0
# The first frame of a monitor's message: event and value, zmq_socket_monitor(3). zmq.utils.monitor has a function for it, but
# imports asyncio, which takes a third of the import time of a small process.
EVENT = struct.Struct("=HI")
_numbers = itertools.count()


def new_pair() -> Pair:
    public, secret = zmq.curve_keypair()
    return Pair(public.decode(), secret.decode())


def library() -> tuple[tuple[int, ...], bool]:
    """The version of libzmq, and whether it supports CURVE encryption."""
    return zmq.zmq_version_info(), zmq.has("curve")


class Handshakes:
    """Counts successful and failed handshakes of a socket's connections, from the socket's monitor."""

    EVENTS = (
        zmq.EVENT_HANDSHAKE_SUCCEEDED
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    )

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.failed = 0
        self._failed_in_a_row = 0
        self._next_warning = 0.0
        self._socket = socket
        address = f"inproc://handshakes-{next(_numbers)}"
        socket.monitor(address, self.EVENTS)
        self._events: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
        self._events.setsockopt(zmq.LINGER, 0)
        self._events.setsockopt(zmq.RCVHWM, 0)  # with a limit, a full queue would block libzmq's own thread
        self._events.connect(address)

    def read(self) -> None:
        """Counts the events since the last call."""
        while self._events.poll(0):
            event, _ = EVENT.unpack(self._events.recv_multipart()[0])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._failed_in_a_row = 0
            elif event & self.EVENTS:
                self.failed += 1
                self._failed_in_a_row += 1

    def warning_due(self) -> bool:
        """True, at most once in WARN_SECONDS, while handshakes keep failing. A single failure may be a restart of the peer."""
        self.read()
        if self._failed_in_a_row < 2 or time.monotonic() < self._next_warning:
            return False
        self._next_warning = time.monotonic() + WARN_SECONDS
        return True

    def close(self) -> None:
        self._socket.disable_monitor()
        self._events.close(linger=0)


class Authenticator:
    """Answers libzmq's request, for each new connection to a server with keys, whether this key may connect (ZAP, RFC 27).

    One thread per process that has such a server. Without an answer no connection is admitted. If the thread ends by an error,
    `watch` prints an alarm and starts another thread.
    """

    def __init__(self) -> None:
        self.say: Callable[[str], None] = lambda line: print(line, flush=True)
        self.alarms = 0
        self._lock = threading.Lock()
        self._find_names: dict[str, Callable[[str], str | None]] = {}  # by domain
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._iterations = 0  # of the thread's loop
        self._iterations_seen = -1
        self._idle_checks = 0  # in a row in which the thread's loop had not moved
        self._next_check = 0.0

    def open(self, domain: str, find_name: Callable[[str], str | None]) -> None:
        """Starts to answer for a domain. `find_name` maps a public key to the name of its owner; None refuses the key."""
        with self._lock:
            self._find_names[domain] = find_name
            if self._thread is None:
                self._start()

    def close(self, domain: str) -> None:
        """Stops answering for a domain; with the last domain the thread ends."""
        with self._lock:
            del self._find_names[domain]
            thread = None if self._find_names else self._thread
            if thread is not None:
                self._closing.set()
                thread.join()
                self._thread = None

    def watch(self) -> None:
        """Checks the thread, at most twice a second. Call it in every iteration of the process's main loop.

        A thread that has ended is replaced. For a thread that hangs (because a disk does not answer, for example) there is only
        an alarm.
        """
        with self._lock:
            if self._thread is None or time.monotonic() < self._next_check:
                return
            self._next_check = time.monotonic() + WATCH_SECONDS
            self._idle_checks = 0 if self._iterations != self._iterations_seen else self._idle_checks + 1
            self._iterations_seen = self._iterations
            if not self._thread.is_alive():
                self.alarms += 1
                self.say("alarm: the authenticator has died, so no new connection was possible; starting it again")
                self._start()
            elif self._idle_checks == 2:
                self.alarms += 1
                self.say("alarm: the authenticator does not answer, so no new connection is possible")

    def _start(self) -> None:
        requests: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.REP)
        requests.setsockopt(zmq.LINGER, 0)
        requests.bind(ZAP_ADDRESS)
        self._closing.clear()
        self._thread = threading.Thread(target=self._serve, args=(requests,), name="authenticator", daemon=True)
        self._thread.start()

    def _serve(self, requests: zmq.Socket[bytes]) -> None:
        try:
            while not self._closing.is_set():
                self._iterations += 1
                if requests.poll(POLL_MS):
                    self._answer(requests)
        finally:
            requests.unbind(ZAP_ADDRESS)  # explicitly, because close() unbinds later and in another thread
            requests.close(linger=0)

    def _answer(self, requests: zmq.Socket[bytes]) -> None:
        """A request is (version, request id, domain, address, routing id, mechanism, credentials …)."""
        _, request, domain, _, _, mechanism, *credentials = requests.recv_multipart()
        find_name, name, public = self._find_names.get(domain.decode()), None, ""
        if find_name and mechanism == b"CURVE" and len(credentials) == 1:
            try:
                public = z85.encode(credentials[0]).decode()
                name = find_name(public)
            except KeysError as error:
                self.say(f"alarm: no new connection is possible: {error}")
        # "300" lets the client try again, and its key may be on the list by then; after "400" it would never try again.
        # The last part is attached to every message of the connection.
        answer = [b"200", b"OK", f"{name} {public}".encode()] if name else [b"300", b"this key is not on the list", b""]
        requests.send_multipart([b"1.0", request, *answer, b""])


AUTHENTICATOR = Authenticator()  # one per process, because libzmq has one ZAP address per process
