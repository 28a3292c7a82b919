"""The life of every process of a run: it sends heartbeats from its main loop, stops on request, and ends with its supervisor."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from types import FrameType
from typing import Any, Literal, NamedTuple

from transport.files.documents import decode
from transport.messages.control import Allowance, Answer, Assignment, Look, Order, Progress, Seen, Steer, Stop, Stopping
from transport.messages.fields import DRAIN_SECONDS, MOST_FIGURES, printable, printable_name
from transport.metrics import Metrics, Record, Shares
from transport.run_dir import RunDir
from transport.sockets.channel import Part
from transport.sockets.client import Client
from transport.sockets.keys import KeysError
from transport.system import keep_memory
from transport.text import say

PARENT_VARIABLE = "HEADRACE_SUPERVISOR_PID"
WAIT = "--wait"  # of a process that is started before its run exists
INCARNATION_VARIABLE = "HEADRACE_INCARNATION"
BEAT_SECONDS = 0.5
GOODBYE_SECONDS = 0.5
REFUSED = 3  # exit status, the same as of the headrace command
HOPELESS_STATUS = 4  # exit status of a process that would fail again after a restart
State = Literal["starting", "ready", "stopping"]
Handler = Callable[[int, FrameType | None], object]
_forking = threading.local()  # mask: the signals that the thread blocked before it forks


def signal_name(number: int) -> str:
    """SIGKILL for 9, which Windows does not know, though hosts of its runs may."""
    try:
        return "SIGKILL" if number == 9 else signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def new_incarnation() -> int:
    """A random number that identifies one start of a process: process numbers repeat, above all on several machines."""
    return secrets.randbits(63)


def given_incarnation() -> int:
    """The number that this process's starter has given it, by which the supervisor knows its reports; a new one without."""
    return int(os.environ.get(INCARNATION_VARIABLE, "0")) or new_incarnation()


def die_with_parent() -> None:
    """Ends this process when the supervisor that started it has ended, however it ended. Without a supervisor, does nothing."""
    parent = int(os.environ.get(PARENT_VARIABLE, "0"))
    if not parent:
        return
    if sys.platform.startswith("linux"):
        # PR_SET_PDEATHSIG = 1: the kernel ends this process, even while a simulator hangs in C code.
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:  # the supervisor ended before the line above
            os._exit(1)
    else:
        threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()


def _watch_parent(parent: int) -> None:
    if sys.platform == "win32":  # where the parent's number stays when the parent has ended
        import _winapi

        with contextlib.suppress(OSError):  # it has ended already
            _winapi.WaitForSingleObject(_winapi.OpenProcess(_winapi.SYNCHRONIZE, False, parent), _winapi.INFINITE)
    else:
        while os.getppid() == parent:
            time.sleep(1.0)
    os._exit(1)


def command_arguments() -> list[str] | None:
    """The arguments of this command. With --wait alone they arrive later, as a line of JSON on standard input; None where there
    is to be no run."""
    if sys.argv[1:] != [WAIT]:
        return sys.argv[1:]
    die_with_parent()
    if not (line := sys.stdin.readline()):
        return None
    sys.argv[1:] = decode(line, list[str])  # a simulator that looks at them finds what it would without --wait
    return sys.argv[1:]


class _Own(NamedTuple):
    """A signal handler of this process alone: the children that it forks have the former one.

    Simulators may fork workers. With this process's handlers in them, terminate() would never end them.
    """

    handler: Handler
    former: Any

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.handler(number, frame)


def handle(number: int, handler: Handler) -> Any:
    """As signal.signal, for this process alone."""
    own = _Own(handler, signal.getsignal(number))
    signal.signal(number, own)
    return own.former


def _own_signals() -> list[int]:
    return [number for number in signal.valid_signals() if isinstance(signal.getsignal(number), _Own)]


def _before_fork() -> None:  # a signal that reached the child before its handlers are back would be lost
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _own_signals())


def _in_child() -> None:
    for number in _own_signals():
        former: Any = signal.getsignal(number)
        while isinstance(former, _Own):
            former = former.former
        signal.signal(number, former or signal.SIG_DFL)
    _after_fork()


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child, after_in_parent=_after_fork)


class Lifetime:
    """Heartbeat, metrics, stop requests and signals of a process: `while not lifetime.stopping: …; lifetime.beat()`.

    A signal or a Stop message only sets a flag; the main loop ends by itself. Call `beat` in every iteration of the main loop
    and in every wait; it is cheap. Twice a second it sends Progress to the supervisor. Every five seconds it closes a metrics
    record, prints the line that `describe` makes of it (nothing if the line is empty), and sends the record along.
    """

    def __init__(
        self,
        name: str,
        run_dir: RunDir,
        describe: Callable[[Record], str],
        reports: bool = True,
        signals: bool = True,
    ) -> None:
        """Installs the signal handlers, so make it in the main thread. If the process's keys are missing or unsafe, prints a line
        and ends the process with status 3.

        `reports` False: another process sends the reports for this one, which then only reacts to signals. `signals` False: not
        to these either, where several roles share a process; `stop` asks it to stop then.
        """
        die_with_parent()
        keep_memory()
        self.name = name
        try:
            self.keys = run_dir.keys(name)  # its own key pair and the keys of its peers; None without keys
        except KeysError as error:
            say(f"{name}: {error}")
            sys.exit(REFUSED)
        self.incarnation = given_incarnation()
        run_dir.metrics(name).parent.mkdir(parents=True, exist_ok=True)  # on another machine the folder does not exist yet
        settings = run_dir.transport
        self.metrics = Metrics(run_dir.metrics(name), settings.metrics_bytes, settings.files_kept)
        self.measure: Callable[[], None] = lambda: None  # called before a record is closed; set gauges there
        self.steps: Callable[[], int] = lambda: 0  # environment steps: see Progress
        self.restored_steps = 0  # of these, by earlier incarnations
        self.assignment: Assignment | None = None  # the newest one from the supervisor; for actors
        self.allowance: int | None = None  # steps that an actor may take; None: any number
        self.drain_seconds = DRAIN_SECONDS  # for actors that stop; may change while they drain
        self.finishing_seconds = 0.0  # for the evaluator, which may work for this long after it was asked to stop
        self.run_ends = False  # for replay: the run is being stopped, though this process is not yet
        self.paused = False  # the run is paused: the main loop rests as soon as it can
        self.order: Order | None = None  # of an operator, for the main loop to `answer`
        self.look: Look | None = None  # of an operator, for the main loop to `show`; for actors
        self.steer: Steer | None = None  # the newest of the person who steers; for actors, which set it to None at the end
        self._answer: Answer | None = None
        self._resting = False
        self._shares = Shares()
        self._describe = describe
        self._stopping = False
        self._state: State = "starting"
        self._beats = 0
        self._next_beat = 0.0
        self._record_seconds = settings.record_seconds
        self._next_record = time.monotonic() + self._record_seconds
        self._pending: Record = {}
        address = run_dir.endpoint("supervisor") if reports else None
        self._control = Client(address, keys=self.keys, endpoint="supervisor") if address else None
        for number in (signal.SIGTERM, signal.SIGINT) if signals else ():
            handle(number, lambda number, frame: self.stop())

    def stop(self) -> None:
        """Asks the main loop to end."""
        self._stopping = True

    @property
    def stopping(self) -> bool:
        return self._stopping

    def ready(self) -> None:
        """Reports to the supervisor that this process is ready, so that processes that depend on it can start."""
        self._state = "ready"
        self._next_beat = 0.0
        self.beat()
        self._next_beat = 0.0  # report the first iteration at once: the supervisor's time limit is shorter from then on

    def beat(self, resting: bool = False) -> None:
        """Call it once in each iteration of the main loop. `resting`: it does nothing, because the run is paused."""
        self._beats += 1
        now = time.monotonic()
        if now < self._next_beat:
            return
        self._next_beat, self._resting = now + BEAT_SECONDS, resting
        if self._state == "ready" and now >= self._next_record:
            self._next_record = now + self._record_seconds
            self._pending = self._record()
            if (line := self._describe(self._pending)) and not resting:
                say(line)
        if self._control is None:
            return
        self.listen()
        state: State = "stopping" if self._stopping else self._state
        if self._control.send(self._progress(state, self._pending)):
            self._pending = {}

    def listen(self) -> None:
        """Takes what the supervisor has sent; each beat that reports does so, too."""
        while self._control is not None and (arrived := self._control.receive(0)) is not None:
            if isinstance(arrived[0], Stop):
                self._stopping, self.drain_seconds = True, arrived[0].drain_seconds
                self.finishing_seconds = arrived[0].finishing_seconds
            elif isinstance(arrived[0], Stopping):
                self.run_ends = True
            elif isinstance(arrived[0], Assignment):
                self.assignment = arrived[0]
            elif isinstance(arrived[0], Allowance):
                self.allowance = arrived[0].steps
            elif isinstance(arrived[0], Order):
                self._take(arrived[0])
            elif isinstance(arrived[0], Look):
                self.look = arrived[0]
            elif isinstance(arrived[0], Steer):
                self.steer = arrived[0]

    def _take(self, order: Order) -> None:
        if order.what in ("pause", "unpause"):
            self.paused = order.what == "pause"
        elif self._answer is None or self._answer.number != order.number:  # otherwise it arrives once more
            self.order = order

    def answer(self, done: bool, text: str) -> bool:
        """Tells the operator the result of `order`, which is done then. False if there is no order."""
        if self.order is None:
            return False
        self._answer, self.order = Answer(self.order.number, done, printable(text)), None
        self._next_beat = 0.0  # with the next beat
        return True

    def show(self, seen: Seen, parts: Sequence[Part]) -> None:
        """Answers `look`, which is done then, or `steer`."""
        if self.look is not None and self.look.number == seen.number:
            self.look = None
        if self._control is not None:
            self._control.send(seen, parts)

    def _progress(self, state: State, record: Record) -> Progress:
        own = self.name, self.incarnation, state, self._beats, sendable(record), self.steps(), self.restored_steps
        return Progress(*own, self._resting, self._answer)

    def _record(self) -> Record:
        self.measure()
        for name, share in self._shares.read().items():
            self.metrics.gauge(name, share)
        return self.metrics.record()

    def record_soon(self) -> None:
        """Has the next beat close the metrics record, so that what was just measured is not overwritten before it is kept."""
        self._next_record = self._next_beat = 0.0

    def sleep(self, seconds: float, resting: bool = False) -> None:
        time.sleep(min(seconds, BEAT_SECONDS))
        self.beat(resting)

    def close(self) -> None:
        """Writes and sends the last metrics record, then closes."""
        last = self._record()
        if self._control is not None:
            self._control.send(self._progress("stopping", last))
            self._control.close(linger_seconds=GOODBYE_SECONDS)


def sendable(record: Record) -> Record:
    """The record as Progress may have it. A user's algorithm names its metrics as it likes, and may have any number of them: the
    supervisor would read no message of such a process, and take it for one that hangs."""
    names = ((printable_name(name.encode("ascii", "backslashreplace").decode()), value) for name, value in record.items())
    return dict(islice(names, MOST_FIGURES))
