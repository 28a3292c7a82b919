"""Which keys may connect: ZeroMQ's questions answered, and its handshakes counted."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from transport.sockets.keys import KeysError, Pair

ASK_ADDRESS = "inproc://zeromq.zap.01"  # where libzmq asks whether a key may connect: RFC 27
LOOK_SECONDS, TURN_MS = 0.5, 100
COMPLAIN_SECONDS = 60.0
_numbers = itertools.count()


def new_pair() -> Pair:
    """A new key pair, from the system's source of randomness."""
    public, secret = zmq.curve_keypair()
    return Pair(public.decode(), secret.decode())


def library() -> tuple[tuple[int, ...], bool]:
    """The version of libzmq, and whether it can encrypt."""
    return zmq.zmq_version_info(), zmq.has("curve")


class Handshakes:
    """Counts how the handshakes of a socket's connections end, as the socket itself reports."""

    EVENTS = (
        zmq.EVENT_HANDSHAKE_SUCCEEDED
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    )

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.failed = 0
        self._in_a_row = 0
        self._next_complaint = 0.0
        self._watched = socket
        address = f"inproc://handshakes-{next(_numbers)}"
        socket.monitor(address, self.EVENTS)
        self._reports: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
        self._reports.setsockopt(zmq.LINGER, 0)
        self._reports.setsockopt(zmq.RCVHWM, 0)  # were it full, libzmq's own thread would wait for us
        self._reports.connect(address)

    def read(self) -> None:
        """Counts what has happened since the last call."""
        while self._reports.poll(0):
            event = parse_monitor_message(self._reports.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._in_a_row = 0
            elif event & self.EVENTS:
                self.failed += 1
                self._in_a_row += 1

    def complaint_due(self) -> bool:
        """Whether to say that one handshake after the other fails: once in a while. A single one may be a restart."""
        self.read()
        if self._in_a_row < 2 or time.monotonic() < self._next_complaint:
            return False
        self._next_complaint = time.monotonic() + COMPLAIN_SECONDS
        return True

    def close(self) -> None:
        self._watched.disable_monitor()
        self._reports.close(linger=0)


class Authenticator:
    """Answers libzmq, which asks of each new connection to a server with keys whether this key may connect (ZAP, RFC 27).

    One thread per process, while it has such a server. Without an answer no connection is admitted: when the thread dies, a line
    in the log says so and another takes its place.
    """

    def __init__(self) -> None:
        self.say: Callable[[str], None] = lambda line: print(line, flush=True)  # a whole line into the process's log
        self.alarms = 0
        self._lock = threading.Lock()
        self._owners: dict[str, Callable[[str], str | None]] = {}
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._turns = 0
        self._turns_seen = -1
        self._looks_in_vain = 0
        self._next_look = 0.0

    def open(self, domain: str, owner: Callable[[str], str | None]) -> None:
        """From now on answers for this domain: `owner` gives the name that a public key belongs to, or None to refuse."""
        with self._lock:
            self._owners[domain] = owner
            if self._thread is None:
                self._start()

    def close(self, domain: str) -> None:
        """A server is gone; ends with the last."""
        with self._lock:
            del self._owners[domain]
            thread = None if self._owners else self._thread
            if thread is not None:
                self._closing.set()
                thread.join()
                self._thread = None

    def watch(self) -> None:
        """To be called in every turn of a process that has such a server; it looks twice a second.

        A thread that has died is replaced; one that hangs (because a disk does not answer, say) only raises the alarm.
        """
        with self._lock:
            if self._thread is None or time.monotonic() < self._next_look:
                return
            self._next_look = time.monotonic() + LOOK_SECONDS
            self._looks_in_vain = 0 if self._turns != self._turns_seen else self._looks_in_vain + 1
            self._turns_seen = self._turns
            if not self._thread.is_alive():
                self.alarms += 1
                self.say("alarm: the authenticator has died, so no new connection was possible; starting it again")
                self._start()
            elif self._looks_in_vain == 2:
                self.alarms += 1
                self.say("alarm: the authenticator does not answer, so no new connection is possible")

    def _start(self) -> None:
        asked: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.REP)
        asked.setsockopt(zmq.LINGER, 0)
        asked.bind(ASK_ADDRESS)
        self._closing.clear()
        self._thread = threading.Thread(target=self._serve, args=(asked,), name="authenticator", daemon=True)
        self._thread.start()

    def _serve(self, asked: zmq.Socket[bytes]) -> None:
        try:
            while not self._closing.is_set():
                self._turns += 1
                if asked.poll(TURN_MS):
                    self._answer(asked)
        finally:
            asked.unbind(ASK_ADDRESS)  # at once: what closing does comes later, from another thread
            asked.close(linger=0)

    def _answer(self, asked: zmq.Socket[bytes]) -> None:
        """Asked are (version, request, domain, address, routing id, mechanism, credentials …)."""
        _, request, domain, _, _, mechanism, *credentials = asked.recv_multipart()
        owner, name = self._owners.get(domain.decode()), None
        if owner and mechanism == b"CURVE" and len(credentials) == 1:
            try:
                name = owner(z85.encode(credentials[0]).decode())
            except KeysError as error:
                self.say(f"alarm: no new connection is possible: {error}")
        # "300" makes a client come again, whose key may be on the list by then; "400" would silence it for good.
        answer = [b"200", b"OK", name.encode()] if name else [b"300", b"this key is not on the list", b""]
        asked.send_multipart([b"1.0", request, *answer, b""])


AUTHENTICATOR = Authenticator()  # libzmq asks at one address for all sockets of a process
