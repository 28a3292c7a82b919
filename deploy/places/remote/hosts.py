"""Hosts as a place: machines whose agent (`headrace join`) has dialled in on the control socket.

A host sends its whole state each second. The supervisor repeats what to begin and to end until that state shows it, so a lost
message or a cut link only costs time. A host makes a new key for each incarnation of an actor. The supervisor puts the public key
on the run's list, and removes it before another process gets the actor's name. So every server refuses an abandoned
actor, even if its host still runs it.

A new supervisor adopts an actor that a host lists as running, if the previous supervisor had it there, its key is still on the
list, and the run's settings are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from deploy.places.base import Exit, HostState
from deploy.places.remote.host import AWAY_SECONDS, LEAVE_SECONDS, Host, HostProcess, server_of
from deploy.process_spec import ProcessSpec
from transport.lifetime import new_incarnation
from transport.messages.control import Assignment, Stop
from transport.messages.fields import PROTOCOL, Message, printable
from transport.messages.hosts import Begin, Begun, End, Enrol, Enrolled, Folder, HostHello, HostWelcome
from transport.messages.replay import Refused
from transport.sockets.keys import SHARED_TICKET, admitted_hosts, ticket_of

GONE_SECONDS = 6.0  # of silence, after which a host and its processes count as gone
BACK_SECONDS = 5.0  # after a silence of AWAY_SECONDS, in which its processes may connect again
END_SECONDS = 1.0  # of LEAVE_SECONDS, to end after they have sent what they have
ADOPT_SECONDS = 10.0  # that a new supervisor waits for the hosts of the previous one
UNWANTED_SECONDS = 30.0  # after which actors that were not adopted are ended
FOLDER_SECONDS = 1.0  # between two looks at the run's folder
FULL_SECONDS = 8.0  # that a host waits where a shared ticket has no name left: a host that has one may have just ended
DELAYED_SECONDS = 0.5  # between two turns; a longer time is a delay of the supervisor, not a silence of the hosts


class Parts(NamedTuple):
    """A Folder and its raw parts."""

    folder: Folder
    files: tuple[bytes, ...]


def settings_of(digest: str) -> str:
    """The part of a folder's digest that says what an actor was started with; the rest says where the servers are."""
    return digest.partition("-")[0]


class AllowList(Protocol):
    """The run's list of public keys. The calls raise KeysError, OSError."""

    def key(self, name: str) -> str | None:
        """The key of that name on the list."""

    def admit(self, name: str, public: str) -> None:
        """Puts a key on the list, in the place of the one that has that name."""

    def refuse(self, names: Sequence[str]) -> None:
        """Takes names from the list."""


class HostContext(NamedTuple):
    """The parts of a run that HostPlaces uses."""

    clock: Callable[[], float]
    say: Callable[[str], None]
    line: Callable[[str, str], None]  # (process, line) of the log
    send: Callable[[str, Message, Sequence[bytes]], bool]  # to a host or a process of the run, by its name
    folder: Callable[[], Parts | None]  # None while a server has no address yet
    settings: Callable[[], str]  # the part of its digest that settings_of gives, which is known before
    keys: AllowList


class HostPlaces:
    """The hosts of a run. Only actors run on them."""

    def __init__(self, context: HostContext, expected: dict[str, str] | None = None) -> None:
        """`expected`: by actor, the host on which it ran under a supervisor that was killed; it is waited for."""
        self.hosts: dict[str, Host] = {}
        self._context = context
        self._before = expected or {}
        self._expected = dict(self._before)  # those that are still waited for
        self._began = self._turned = context.clock()
        self._parts: Parts | None = None
        self._next_folder = 0.0
        self._free: dict[str, float] = {}  # from when on a shared ticket may give the name of a host to another one
        self._full: float | None = None  # since when a shared ticket has no name left
        self._awaited: Mapping[str, int] = {}  # places, by host

    def begin(self, spec: ProcessSpec, assignment: Assignment | None) -> HostProcess | None:
        """Adopts the actor from the host that runs it, or starts it on the emptiest host. None without room, and for processes
        that are no actors."""
        if assignment is None:
            return None
        for host in self.hosts.values():
            if (begun := host.adoptable.pop(spec.name, None)) is not None:
                process = HostProcess(spec.name, begun.incarnation, host, None)
                process.public = begun.public
                process.listed(begun)
                host.processes[begun.incarnation] = process
                return process
        host_or_none = max(self.hosts.values(), key=lambda host: host.free, default=None)
        if self.expects(spec.name) or host_or_none is None or host_or_none.free <= 0:
            return None
        self._context.keys.refuse([spec.name])  # the key of the previous process of this name
        host, incarnation = host_or_none, new_incarnation()
        order = Begin("actor", int(spec.name.partition("-")[2]), incarnation, spec.threads, assignment)
        process = host.processes[incarnation] = HostProcess(spec.name, incarnation, host, order)
        host.tell(order)
        return process

    def expects(self, name: str) -> bool:
        """True while a host of the previous supervisor may still report this actor."""
        return name in self._expected

    def turn(self) -> None:
        now = self._context.clock()
        delay, self._turned = now - self._turned, now
        for host in list(self.hosts.values()):
            if delay > DELAYED_SECONDS:
                host.last_hello = min(host.last_hello + delay, now)
            silent = now - host.last_hello
            for process in host.processes.values():
                process.away = silent > AWAY_SECONDS or now - host.back < BACK_SECONDS
            if silent >= GONE_SECONDS:
                self._drop(host, f"has not been heard for {silent:.0f} s")
            elif host.adoptable and now - host.joined > UNWANTED_SECONDS:
                self._end_unwanted(host)
        if now - self._began > ADOPT_SECONDS:
            self._expected.clear()
        if now >= self._next_folder:
            self._next_folder = now + FOLDER_SECONDS
            self._parts = self._context.folder()

    def figures(self) -> list[dict[str, Any]]:
        """For the status."""
        now = self._context.clock()
        waiting = [
            {"name": name, "state": "waiting", "silent_seconds": None, "places": places, "actors": 0}
            for name, places in self._awaited.items()
            if name not in self.hosts
        ]
        return [host.figures(now) for host in self._by_number()] + waiting

    def servers(self) -> list[dict[str, Any]]:
        """The processes that serve the actors of hosts, for the status."""
        return [figures for host in self._by_number() for figures in host.server_figures()]

    def _by_number(self) -> list[Host]:
        return sorted(self.hosts.values(), key=lambda host: host.number)

    def close(self) -> None:
        """Tells the hosts to leave."""
        for host in self.hosts.values():
            host.tell(Stop("the run has ended"))
        self.hosts.clear()

    # ---- what an engine asks (deploy/engines/base.py)

    def joined(self) -> dict[str, HostState]:
        return {host.name: HostState(host.running, max(host.free, 0)) for host in self.hosts.values()}

    def send_home(self, name: str, reason: str) -> None:
        if (host := self.hosts.get(name)) is not None:
            host.home = Stop(printable(reason))
            host.tell(host.home)

    def awaits(self, places: Mapping[str, int]) -> None:
        self._awaited = places

    def abandon(self, name: str) -> None:
        if (host := self.hosts.get(name)) is not None:
            self._drop(host, "has ended")
        self._context.keys.refuse([name])

    # ---- what arrives on the control socket

    def enrol(self, ticket: str, message: Enrol) -> Message | None:
        """Answers the owner of a ticket; None where it has to ask again. Raises KeysError, OSError."""
        if message.protocol != PROTOCOL:
            return _other_version(message.protocol)
        names = admitted_hosts(ticket)
        name = self._name_for(names, message.public) if ticket.startswith(SHARED_TICKET) else names[0]
        if name is None:
            now = self._context.clock()
            self._full = now if self._full is None else self._full
            if now - self._full < FULL_SECONDS:
                return None
            return Refused(f"its ticket is for {len(names)} hosts, and as many are there: make one for more of them")
        if self._context.keys.key(name) != message.public:
            self._context.keys.admit(name, message.public)
            self._context.say(f"{name} has enrolled by its ticket")
        self._full = None
        self._free[name] = self._context.clock() + GONE_SECONDS  # until then it has said that it is there
        return Enrolled(name)

    def _name_for(self, names: Sequence[str], public: str) -> str | None:
        """The name that a host gets by a shared ticket: the one that its key has, otherwise an unused one, otherwise that of the
        host that has been gone for longest. None where none is free now."""
        keys, now = self._context.keys, self._context.clock()
        shared = [name for name in names if keys.key(ticket_of(name)) is None]  # each other one is for the host with its ticket
        had = {name: key for name in shared if (key := keys.key(name)) is not None}
        for name, key in had.items():
            if key == public:
                return name
        if unused := [name for name in shared if name not in had]:
            return unused[0]
        # Hosts of the previous supervisor may still report.
        free = {name: self._free.get(name, self._began + ADOPT_SECONDS) for name in shared if name not in self.hosts}
        return min((name for name in free if free[name] <= now), key=lambda name: free[name], default=None)

    def hello(self, message: HostHello) -> Message:
        """Takes the state of a host, tells it what is to change there, and answers. Raises KeysError, OSError."""
        if message.protocol != PROTOCOL:
            return _other_version(message.protocol)
        now, host = self._context.clock(), self.hosts.get(message.name)
        if host is not None and host.incarnation != message.incarnation:
            self._drop(host, "was started again")
            host = None
        if host is None:
            host = Host(message.name, message.incarnation, message.places, now, self._context.send, joined=now)
            self.hosts[host.name] = host
            self._expected = {name: expected for name, expected in self._expected.items() if expected != host.name}
            self._context.say(f"{host.name} has joined with {host.places} places")
        if now - host.last_hello > AWAY_SECONDS:
            host.back = now
        host.last_hello, host.places, host.folder = now, message.places, message.folder
        if message.leaving and not host.leaving:
            self._context.say(f"{host.name} leaves")
            stop = Stop(f"its host {host.name} leaves", LEAVE_SECONDS - END_SECONDS)
            for process in host.processes.values():  # the signal of its agent alone gives an actor less time
                self._context.send(process.name, stop, ())
        host.leaving, host.servers = message.leaving, message.servers
        host.running = len(message.running)
        for begun in message.running:
            self._on_running(host, begun)
        for ended in message.ended:
            self._on_ended(host, ended.incarnation, Exit(ended.code, ended.last_words, ended.out_of_memory, ended.explained))
        for process in host.processes.values():
            if process.order is not None:
                host.tell(process.order)
            elif process.end is not None:
                host.tell(process.end)
        if host.home is not None and not host.leaving:
            host.tell(host.home)
        if host.leaving and not message.running:
            self._drop(host, "has left")
        elif self._parts is not None and host.folder != self._parts.folder.digest:
            host.tell(self._parts.folder, self._parts.files)
        return HostWelcome(tuple(ended.incarnation for ended in message.ended))

    def said(self, host_name: str, name: str, lines: Sequence[str]) -> None:
        """Puts lines of a host, or of a process that runs there, into the log."""
        host = self.hosts.get(host_name)
        servers = () if host is None else (server_of(host_name, server.role) for server in host.servers)
        actors = () if host is None else (process.name for process in host.processes.values())
        if name in (host_name, *servers, *actors):
            for line in lines:
                self._context.line(name, line)

    def _on_running(self, host: Host, begun: Begun) -> None:
        process = host.processes.get(begun.incarnation)
        if process is not None:
            if not process.public:
                self._context.keys.admit(process.name, begun.public)
                process.public = begun.public
            process.listed(begun)
        elif self._may_adopt(host, begun):
            host.adoptable[begun.name] = begun
        else:  # abandoned by this supervisor or the previous one
            host.tell(End(begun.incarnation, kill=True))

    def _may_adopt(self, host: Host, begun: Begun) -> bool:
        same = settings_of(host.folder) == self._context.settings()
        return same and self._before.get(begun.name) == host.name and self._context.keys.key(begun.name) == begun.public

    def _on_ended(self, host: Host, incarnation: int, ended: Exit) -> None:
        process = host.processes.pop(incarnation, None)
        if process is not None:
            self._refuse([process.name])
            process.ended = Exit(0, with_host=f"its host {host.name} leaves") if host.leaving else ended

    def _drop(self, host: Host, what: str) -> None:
        """Abandons a host with all its processes, and refuses their keys. `what` completes the sentence `host-3 …`."""
        self._refuse([process.name for process in host.processes.values()])
        for process in host.processes.values():
            process.ended = Exit(0, with_host=f"its host {host.name} {what}")
        del self.hosts[host.name]
        self._free[host.name] = self._context.clock()
        self._context.say(f"{host.name} {what}")

    def _refuse(self, names: Sequence[str]) -> None:
        try:
            self._context.keys.refuse(names)
        except OSError as error:
            self._context.say(f"alarm: the keys of {', '.join(names)} could not be taken from the list: {error}")

    def _end_unwanted(self, host: Host) -> None:
        for begun in host.adoptable.values():
            host.tell(End(begun.incarnation, kill=True))
        host.adoptable.clear()


def _other_version(protocol: int) -> Refused:
    return Refused(printable(f"this host speaks protocol {protocol}, the run {PROTOCOL}: install the same version for both"))
