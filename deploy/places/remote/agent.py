"""The agent of a host (`headrace join`): starts actors of a run on this machine, as the run's supervisor asks.

It dials in, so the host needs no open port. It takes no command, path or code: an actor's command follows from its role, its
settings are checked (host_folder.py), its keys are made here. The whole state goes to the supervisor each second.
An agent that hears nothing for `deploy.orphan_seconds` ends its actors and itself; so does one whose key is refused.

It also keeps the processes running that serve its actors: with several places a relay, by which each version of the weights
travels to this host once; with --actors.inference batched an inference process, which acts for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from deploy.config.run import DeployConfig
from deploy.places.base import Exit, Process
from deploy.places.remote.host import LEAVE_SECONDS, server_of
from deploy.places.remote.host_folder import FolderRefused, HostFolder
from deploy.process_spec import SERVERS, ProcessSpec, actor, restart_seconds
from transport.lifetime import new_incarnation
from transport.messages.control import Assignment, Stop
from transport.messages.fields import (
    FAULT_LETTERS,
    LINE_LETTERS,
    MOST_ENDED,
    MOST_LINES,
    PROTOCOL,
    WORDS_LETTERS,
    Message,
    printable,
)
from transport.messages.hosts import Begin, Begun, End, Ended, Folder, HostHello, HostServer, HostWelcome, Said
from transport.messages.replay import Refused
from transport.text import plain

HELLO_SECONDS = 1.0
MOST_UNSENT_LINES = 2000
DONE, FAILED, REFUSED = 0, 1, 3  # exit status of the command
MOST_DELAY_SECONDS, SOUND_SECONDS = 4.0, 10.0  # before a server is started again; of work after which that is at once
HANG_SECONDS = 20.0  # besides two of its lines that a server has not printed
FIRST_SECONDS = 120.0  # before its first line: it imports torch, and opens a device


class Link(Protocol):
    """The connection to the supervisor; transport/sockets/client.py."""

    def send(self, message: Message, parts: Sequence[bytes] = ()) -> bool: ...

    def receive(self, timeout_seconds: float = 0) -> tuple[Any, list[bytes]] | None: ...


class Starter(Protocol):
    """Starts processes on this machine; deploy/places/local.py."""

    def begin(self, spec: ProcessSpec, assignment: Assignment | None, incarnation: int = 0) -> Process: ...

    def turn(self) -> None: ...


class HostActor(NamedTuple):
    """An actor of this host."""

    name: str
    public: str
    process: Process


class Keeper:
    """Keeps a process running that serves the actors of a host. While it is started again, actors go on with the weights that
    they have (learner/serving/relay.py), or wait (learner/serving/inference.py)."""

    def __init__(
        self,
        role: Literal["relay", "inference"],
        host: str,
        folder: HostFolder,
        starter: Starter,
        clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self.role, self.name = role, server_of(host, role)
        self._folder, self._starter, self._clock, self._say = folder, starter, clock, say
        self._process: Process | None = None
        self._restarts, self._last_exit = 0, ""
        self._failures, self._next_start = 1, clock()
        self._began = self._last_line = clock()
        self._most_silence = HANG_SECONDS + 2 * folder.run.transport.record_seconds

    @property
    def state(self) -> HostServer:
        if self._process is None:
            return HostServer(self.role, 0, self._restarts, self._last_exit)
        return HostServer(self.role, self._process.pid, self._restarts, self._last_exit, *self._process.usage())

    def on_line(self) -> None:
        """Call it for each line that the process prints, from any thread."""
        self._last_line = self._clock()

    def turn(self) -> None:
        now = self._clock()
        if self._process is None:
            if now >= self._next_start:
                self._start(now)
        elif (ended := self._process.poll()) is not None:
            self._on_exit(ended, now)
        elif now - self._last_line > (self._most_silence if self._last_line > self._began else FIRST_SECONDS):
            self._say(f"{self.name} hangs: it has printed nothing for {now - self._last_line:.0f} s")
            self._process.kill()
            self._last_line = now

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _start(self, now: float) -> None:
        self._began = self._last_line = now
        try:
            self._folder.prepare_server(self.name)
            self._process = self._starter.begin(SERVERS[self.role](str(self._folder.run.path), self.name), None)
        except OSError as error:
            self._on_exit(Exit(1, f"it could not be started: {error}"), now)
        else:
            self._say(f"starting {self.name} (pid {self._process.pid})")

    def _on_exit(self, ended: Exit, now: float) -> None:
        self._process, self._restarts = None, self._restarts + 1
        self._last_exit = printable(ended.reason)[:WORDS_LETTERS]
        self._failures = 1 if now - self._began > SOUND_SECONDS else self._failures + 1
        self._next_start = now + restart_seconds(self._failures, MOST_DELAY_SECONDS)
        self._say(f"{self.name} has ended ({ended.reason}); it is started again")


class HostAgent:
    """Call `turn` about ten times a second until `over`. The clock is a parameter, so that tests can replay histories."""

    def __init__(
        self,
        name: str,
        places: int,
        link: Link,
        folder: HostFolder,
        starter: Callable[[int], Starter],
        clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        """`starter(memory_bytes)` makes what starts actors of at most so much memory each, once a folder has arrived."""
        self.name, self.over, self.exit_status, self.reason = name, False, DONE, ""
        self._places, self._link, self._folder, self._make_starter = places, link, folder, starter
        self._clock, self._say = clock, say
        self._starter: Starter | None = None
        self._keepers: dict[str, Keeper] = {}  # by the name of the process
        self._incarnation = new_incarnation()
        self._children: dict[int, HostActor] = {}  # by incarnation
        self._asked: set[int] = set()  # to end
        self._ended: dict[int, Ended] = {}  # until the supervisor has taken them
        self._lines: deque[tuple[str, str]] = deque(maxlen=MOST_UNSENT_LINES)  # any thread appends
        self._orphan_seconds = DeployConfig().orphan_seconds
        self._last_message, self._next_hello, self._leave_by = clock(), 0.0, 0.0

    @property
    def leaving(self) -> bool:
        return bool(self.reason)

    def line(self, name: str, text: str) -> None:
        """Takes a line that a process has printed; any thread may call."""
        self._lines.append((name, printable(plain(text))[:LINE_LETTERS]))
        if (keeper := self._keepers.get(name)) is not None:
            keeper.on_line()

    def leave(self, reason: str, exit_status: int = DONE, at_once: bool = False) -> None:
        """Ends the actors in order, or `at_once`, then the agent."""
        if not self.leaving:
            self.reason, self.exit_status = reason, exit_status
            self._say(f"{self.name} leaves: {reason}")
            self.line(self.name, f"leaves: {reason}")
            self._leave_by, self._next_hello = self._clock() + LEAVE_SECONDS, 0.0
            for incarnation in self._children:
                self._ask(incarnation)
        if at_once:
            self._leave_by = self._clock()

    def turn(self, timeout_seconds: float = 0.0) -> None:
        """Does what is due. Waits at most `timeout_seconds` for the first message."""
        while (arrived := self._link.receive(timeout_seconds)) is not None:
            self._handle(*arrived)
            timeout_seconds = 0
        if self._starter is not None:
            self._starter.turn()
        for keeper in self._keepers.values() if not self.leaving else ():
            keeper.turn()
        for incarnation, child in list(self._children.items()):
            if (ended := child.process.poll()) is not None:
                del self._children[incarnation]
                self._on_exit(incarnation, child.name, ended)
        now = self._clock()
        if now - self._last_message > self._orphan_seconds:
            seconds = f"{self._orphan_seconds:.0f} s"
            self.leave(f"it has heard nothing from the supervisor for {seconds} (deploy.orphan_seconds)", FAILED, at_once=True)
        if self.leaving and now >= self._leave_by:
            for child in self._children.values():
                child.process.kill()
        self._send_lines()
        self.over = self.leaving and not self._children
        for keeper in self._keepers.values() if self.over else ():
            keeper.close()
        if now >= self._next_hello or self.over:
            self._next_hello = now + HELLO_SECONDS
            self._link.send(self._hello())

    def _handle(self, message: object, parts: Sequence[bytes]) -> None:
        if isinstance(message, Refused):
            self.leave(message.reason, REFUSED, at_once=True)
            return
        self._last_message = self._clock()
        if isinstance(message, HostWelcome):
            for incarnation in message.ended:
                self._ended.pop(incarnation, None)
        elif isinstance(message, Stop):
            self.leave(message.reason)
        elif isinstance(message, End) and message.incarnation in self._children:
            if message.kill:
                self._children[message.incarnation].process.kill()
            else:
                self._ask(message.incarnation)
        elif self.leaving:
            return
        elif isinstance(message, Folder):
            self._take(message, parts)
        elif isinstance(message, Begin):
            self._begin(message)

    def _take(self, folder: Folder, parts: Sequence[bytes]) -> None:
        try:
            self._folder.write(folder, parts)
        except FolderRefused as error:
            self.leave(str(error), REFUSED)
            return
        if self._starter is None:
            self._starter = self._make_starter(folder.memory_bytes)
            self._say(f"{self.name} has joined run {folder.run} with {self._places} places")
        for role in self._folder.servers:
            if server_of(self.name, role) not in self._keepers:
                keeper = Keeper(role, self.name, self._folder, self._starter, self._clock, self._report)
                self._keepers[keeper.name] = keeper
        self._orphan_seconds, self._next_hello = folder.orphan_seconds, 0.0

    def _begin(self, order: Begin) -> None:
        known = order.incarnation in self._children or order.incarnation in self._ended
        if self._starter is None or known or len(self._children) >= self._places:
            return  # an order is repeated until the supervisor has seen that it was carried out
        spec = actor(str(self._folder.run.path), order.index, order.threads)
        self._next_hello = 0.0
        try:
            public = self._folder.prepare(spec.name)
            process = self._starter.begin(spec, order.assignment, order.incarnation)
        except OSError as error:
            self._on_exit(order.incarnation, spec.name, Exit(1, f"it could not be started: {error}"))
            return
        self._children[order.incarnation] = HostActor(spec.name, public, process)
        self._say(f"starting {spec.name} (pid {process.pid})")

    def _report(self, text: str) -> None:
        """Says something here and in the run's log."""
        self._say(text)
        self.line(self.name, text)

    def _ask(self, incarnation: int) -> None:
        """Asks an actor to end, once: a second signal would end it while it still sends what it has."""
        if incarnation not in self._asked:
            self._asked.add(incarnation)
            self._children[incarnation].process.ask()

    def _on_exit(self, incarnation: int, name: str, ended: Exit) -> None:
        words = printable(ended.last_words)[:WORDS_LETTERS]
        self._asked.discard(incarnation)
        self._ended[incarnation] = Ended(incarnation, ended.code, words, ended.out_of_memory, ended.explained)
        self._say(f"{name} has ended ({ended.reason})")
        self._next_hello = 0.0

    def _hello(self) -> HostHello:
        running = tuple(_begun(incarnation, child) for incarnation, child in self._children.items())
        ended = tuple(self._ended.values())[:MOST_ENDED]
        state = self._places, self._folder.digest, running, ended, self.leaving
        return HostHello(self.name, self._incarnation, PROTOCOL, *state, tuple(keeper.state for keeper in self._keepers.values()))

    def _send_lines(self) -> None:
        while self._lines:
            name, lines = self._lines[0][0], list[str]()
            while self._lines and self._lines[0][0] == name and len(lines) < MOST_LINES:
                lines.append(self._lines.popleft()[1])
            if not self._link.send(Said(self.name, name, tuple(lines))):
                self._lines.extendleft((name, line) for line in reversed(lines))
                return


def _begun(incarnation: int, child: HostActor) -> Begun:
    process, usage = child.process, child.process.usage()
    fault = printable(process.fault)[:FAULT_LETTERS]
    return Begun(child.name, incarnation, child.public, process.pid, fault, usage.rss_bytes, usage.cpu_percent)
