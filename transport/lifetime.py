"""What every process of a run does: report from its main loop, stop when it is asked to, and never outlive its supervisor."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Literal

from transport.messages import DRAIN_SECONDS, Assignment, Progress, Stop
from transport.metrics import Metrics, Record, Shares
from transport.run_dir import RunDir
from transport.sockets.client import Client
from transport.sockets.keys import KeysError

PARENT_VARIABLE = "HEADRACE_SUPERVISOR_PID"
BEAT_SECONDS = 0.5
RECORD_SECONDS = 5.0
GOODBYE_SECONDS = 0.5
REFUSED = 3  # exit status, as of the headrace command
HOPELESS_STATUS = 4  # of a process that would fail again if it were started again
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h


def new_incarnation() -> int:
    """A number that differs at each start of a process."""
    return secrets.randbits(63)


def die_with_parent() -> None:
    """Ends this process when the supervisor that started it is gone, however it went. Without a supervisor, does nothing."""
    parent = int(os.environ.get(PARENT_VARIABLE, "0"))
    if not parent:
        return
    if sys.platform.startswith("linux"):
        # PR_SET_PDEATHSIG = 1: the kernel does it, even while a simulator hangs inside C code.
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
    else:
        threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()


def keep_memory() -> None:
    """Makes glibc keep large blocks that were freed; elsewhere, does nothing.

    Its default is to give blocks of the size of a chunk back to the system at once, only to fault all their pages in again:
    replay then takes in less than half as many steps per second, and an update of the Nature network on a CPU takes a tenth
    longer.
    """
    _mallopt(M_MMAP_THRESHOLD, 32 << 20)
    _mallopt(M_TRIM_THRESHOLD, 256 << 20)


def share_heap() -> None:
    """Makes glibc allocate for all threads from one heap; elsewhere, does nothing. Call it before there are others.

    By default the thread that receives has a heap of its own, which keeps what the main thread frees, too: 11 of 142 MB where
    eight actors send as fast as they can. Not for a learner, whose updates become slower.
    """
    _mallopt(M_ARENA_MAX, 1)


def _mallopt(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is not None:
        mallopt(parameter, value)


def release_memory() -> None:
    """Makes glibc give back all that it keeps; elsewhere, does nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim(0)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


class Lifetime:
    """One process's life: `while not life.stopping: …; life.beat()`.

    A signal or a Stop message only sets the flag; the loop ends by itself. `beat` is cheap and belongs into every turn of
    the main loop, waiting included: twice a second it tells the supervisor that the loop turns, each five seconds it closes a
    metrics record, prints it as the line `describe` makes of it (none if that is empty), and sends it along.
    """

    def __init__(
        self, name: str, run_dir: RunDir, describe: Callable[[Record], str], known_as: int = 0, reports: bool = True
    ) -> None:
        """Installs the signal handlers; must be made in the main thread. Ends the process with a line and status 3 where its
        keys are missing or unsafe.

        `known_as`: the pid of the process that the supervisor started, where this one does the work for it. Without `reports`
        another process speaks for this one, which then only hears signals.
        """
        die_with_parent()
        keep_memory()
        self.name = name
        try:
            self.keys = run_dir.keys(name)  # who this process is to those it connects to, and who may connect to it
        except KeysError as error:
            say(f"{name}: {error}")
            sys.exit(REFUSED)
        self.incarnation = new_incarnation()
        run_dir.metrics(name).parent.mkdir(parents=True, exist_ok=True)  # an actor on another machine has a folder of its own
        self.metrics = Metrics(run_dir.metrics(name), run_dir.transport.metrics_bytes, run_dir.transport.files_kept)
        self.measure: Callable[[], None] = lambda: None  # called just before a record is closed: the place to set gauges
        self.assignment: Assignment | None = None  # the supervisor's newest, for actors
        self.drain_seconds = DRAIN_SECONDS  # once stopping, for actors; may change while they drain
        self._shares = Shares()
        self._describe = describe
        self._stopping = False
        self._state: Literal["starting", "ready", "stopping"] = "starting"
        self._beats = 0
        self._next_beat = 0.0
        self._next_record = time.monotonic() + RECORD_SECONDS
        self._pending: Record = {}
        address = run_dir.endpoint("supervisor") if reports else None
        self._pid = known_as or os.getpid()
        self._control = Client(address, keys=self.keys, endpoint="supervisor") if address else None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        self._stopping = True

    @property
    def stopping(self) -> bool:
        """Whether the process has been asked to end."""
        return self._stopping

    def ready(self) -> None:
        """Tells the supervisor that this process now does its work, so that those who need it may start."""
        self._state = "ready"
        self._next_beat = 0.0
        self.beat()
        self._next_beat = 0.0  # the supervisor hears at once that a first turn is done, and need be less patient from then on

    def beat(self) -> None:
        """One turn of the main loop."""
        self._beats += 1
        now = time.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + BEAT_SECONDS
        if self._state == "ready" and now >= self._next_record:
            self._next_record = now + RECORD_SECONDS
            self._pending = self._record()
            if line := self._describe(self._pending):
                say(line)
        if self._control is None:
            return
        while (arrived := self._control.receive(0)) is not None:
            if isinstance(arrived[0], Stop):
                self._stopping, self.drain_seconds = True, arrived[0].drain_seconds
            elif isinstance(arrived[0], Assignment):
                self.assignment = arrived[0]
        state = "stopping" if self._stopping else self._state
        if self._control.send(Progress(self.name, self._pid, state, self._beats, self._pending)):
            self._pending = {}

    def _record(self) -> Record:
        self.measure()
        for name, share in self._shares.read().items():
            self.metrics.gauge(name, share)
        return self.metrics.record()

    def pause(self, seconds: float) -> None:
        """Waits for something outside without freezing the heartbeat."""
        time.sleep(min(seconds, BEAT_SECONDS))
        self.beat()

    def close(self) -> None:
        """Writes and sends the last record: what was counted since the one before belongs to the run, too."""
        last = self._record()
        self.metrics.close()
        if self._control is not None:
            self._control.send(Progress(self.name, self._pid, "stopping", self._beats, last))
            self._control.close(linger_seconds=GOODBYE_SECONDS)


def say(line: str) -> None:
    """Prints one whole line at once, so that lines of several processes never mix."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
