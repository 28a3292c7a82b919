"""Hosts and their supervisor's side without machines: messages pass by lists, time passes when a test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.places.base import Exit, Usage
from deploy.places.remote.agent import HostAgent
from deploy.places.remote.host import HostProcess
from deploy.places.remote.hosts import HostContext, HostPlaces, Parts
from deploy.process_spec import ProcessSpec, actor
from transport.messages.control import Assignment
from transport.messages.fields import Message
from transport.messages.hosts import Enrol, Folder, HostHello, Said
from transport.run_dir import RunDir

ASSIGNMENT = Assignment(0, 8, 1)
PARTS = Parts(Folder("settings-addresses", "mine", {}, {}, 0, 300.0), (b"", b"", b"", b""))
TURN_SECONDS = 0.1


def spec_of(index: int) -> ProcessSpec:
    return actor("folder", index, 1)


@dataclass
class FakeChild:
    """A process that a host has started."""

    incarnation: int
    pid: int = 100  # of all of them: numbers repeat
    ended: Exit | None = None
    deaf: bool = False
    fault: str = ""
    host: str = ""
    away: bool = False
    adopted: bool = False

    def poll(self) -> Exit | None:
        return self.ended

    def ask(self) -> None:
        if not self.deaf:
            self.ended = Exit(0)

    def kill(self) -> None:
        self.ended = self.ended or Exit(-9)

    def usage(self) -> Usage:
        return Usage(1000, 50.0)


class FakeFolder:
    """A host's folder whose keys are counted."""

    made = 0

    def __init__(self, servers: tuple[str, ...]) -> None:
        self.run, self.digest, self.servers = RunDir(Path("nowhere")), "", servers

    def write(self, folder: Folder, parts: Sequence[bytes]) -> None:
        self.digest = folder.digest

    def prepare(self, name: str) -> str:
        FakeFolder.made += 1
        return f"{FakeFolder.made:040d}"

    def prepare_server(self, name: str) -> None: ...


@dataclass
class AllowList:
    """The run's list of keys."""

    listed: dict[str, str] = field(default_factory=dict)

    def key(self, name: str) -> str | None:
        return self.listed.get(name)

    def admit(self, name: str, public: str) -> None:
        self.listed[name] = public

    def refuse(self, names: Sequence[str]) -> None:
        for name in names:
            self.listed.pop(name, None)


class Machine:
    """A host with its agent."""

    def __init__(self, world: World, name: str, places: int) -> None:
        self.world, self.cut, self.stopped = world, False, False
        self.inbox: deque[tuple[Any, list[bytes]]] = deque()
        self.sent: list[Message] = []
        self.children: list[FakeChild] = []
        self.servers: dict[str, list[FakeChild]] = {"relay": [], "inference": []}  # by role
        self.lines: list[str] = []
        self.unable = False
        link: Any = self
        folder: Any = FakeFolder(world.servers)
        self.agent = HostAgent(name, places, link, folder, lambda memory: self, lambda: world.now, self.lines.append)

    # the agent's link

    def send(self, message: Message, parts: Sequence[bytes] = ()) -> bool:
        self.sent.append(message)
        if not self.cut:
            self.world.deliver(self, message)
        return True

    def receive(self, timeout_seconds: float = 0) -> tuple[Any, list[bytes]] | None:
        return self.inbox.popleft() if self.inbox else None

    # what starts processes

    def begin(self, spec: ProcessSpec, assignment: Assignment | None, incarnation: int = 0) -> FakeChild:
        if self.unable:
            raise OSError("no more processes")
        if spec.role in self.servers:
            self.servers[spec.role].append(FakeChild(incarnation))
            return self.servers[spec.role][-1]
        assert assignment is not None
        self.children.append(FakeChild(incarnation))
        return self.children[-1]

    def turn(self) -> None: ...

    @property
    def relays(self) -> list[FakeChild]:
        return self.servers["relay"]

    @property
    def alive(self) -> list[int]:
        """The incarnations at work."""
        return [child.incarnation for child in self.children if child.ended is None]


class World:
    """A supervisor's side and its hosts."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.keys, self.settings = AllowList(), "settings"
        self.servers: tuple[str, ...] = ()  # roles of the processes that serve the actors of each host
        self.machines: dict[str, Machine] = {}
        self.told: list[tuple[str, Message]] = []  # actors, by the supervisor
        self.lines: list[str] = []
        self.supervise()

    def supervise(self, expected: dict[str, str] | None = None) -> None:
        """A supervisor begins, perhaps after one that was killed."""
        line = lambda name, text: self.lines.append(f"{name} | {text}")  # noqa: E731
        say = lambda text: line("supervisor", text)  # noqa: E731
        context = HostContext(lambda: self.now, say, line, self.send, lambda: PARTS, lambda: self.settings, self.keys)
        self.places = HostPlaces(context, expected)

    def join(self, *places: int) -> list[Machine]:
        """Hosts join with so many places each."""
        made = []
        for number in places:
            name = f"host-{len(self.machines)}"
            made.append(Machine(self, name, number))
            self.machines[name] = made[-1]
        self.run(1.5)
        return made

    def send(self, name: str, message: Message, parts: Sequence[bytes]) -> bool:
        machine = self.machines.get(name)
        if machine is None:
            self.told.append((name, message))
        elif not machine.cut:
            machine.inbox.append((message, list(parts)))
        return True

    def deliver(self, machine: Machine, message: Message) -> None:
        if isinstance(message, HostHello):
            machine.inbox.append((self.places.hello(message), []))
        elif isinstance(message, Said):
            self.places.said(message.host, message.name, message.lines)
        else:
            assert not isinstance(message, Enrol)

    def begin(self, index: int) -> HostProcess | None:
        return self.places.begin(spec_of(index), ASSIGNMENT)

    def begun(self, index: int) -> HostProcess:
        """An actor that works on a host."""
        process = self.begin(index)
        assert process is not None
        self.run(0.5)
        assert process.poll() is None and process.pid
        return process

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        end = self.now + seconds
        while self.now < end:
            self.places.turn()
            for machine in self.machines.values():
                if not machine.stopped and not machine.agent.over:
                    machine.agent.turn()
            self.now = round(self.now + TURN_SECONDS, 6)
