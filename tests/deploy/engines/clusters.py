"""A cluster without machines: hosts are those of tests/deploy/places/far.py, time passes when a test says so."""

from __future__ import annotations

from collections.abc import Mapping

from deploy.engines.base import EngineContext
from deploy.engines.fleet import Connected, Event, Fleet, HostEnded, Placed, Waiting
from deploy.places.base import HostState
from tests.deploy.places.far import ASSIGNMENT, AllowList, Machine, World, spec_of

TICKET = "the secret of a ticket"


class FakeCluster:
    """Has room for hosts with so many places together."""

    def __init__(self, world: World, room: int, found: tuple[str, ...] = ()) -> None:
        self.world, self.room = world, room
        self.asked: dict[str, int] = {}  # by name in the cluster: hosts that have no machine yet
        self.running: dict[str, Machine] = {}
        self.started: list[str] = []
        self.ended: list[str] = []
        self.news: list[Event] = [Connected(found)]
        self.closed = self.broken = self.mute = False

    def start(self, host: str, places: int, ticket: str) -> None:
        assert ticket == TICKET
        self.started.append(host)
        self.asked[host] = places
        if self.broken:
            del self.asked[host]
            self.news.append(HostEnded(host, "No module named 'deploy'"))

    def end(self, host: str) -> None:
        self.ended.append(host)
        self.asked.pop(host, None)
        if (machine := self.running.pop(host, None)) is not None:
            machine.stopped = True

    def events(self) -> list[Event]:
        for host, places in list(self.asked.items()):
            if places <= self.room - sum(int(name.split(".")[1]) for name in self.running):
                del self.asked[host]
                self.news.append(Placed(host))
                name = host.partition(".")[0]
                self.running[host] = self.world.machines[name] = Machine(self.world, name, places)
                self.running[host].cut = self.mute
        for host, machine in list(self.running.items()):
            if machine.agent.over:
                del self.running[host]
                self.news.append(HostEnded(host, machine.agent.reason))
        news, self.news = self.news, []
        return news

    def close(self) -> None:
        self.closed = True

    # what a test does

    def say_who_waits(self) -> None:
        self.news += [Waiting(host, "each asks for 4 CPUs; 0 of 4 are free") for host in self.asked]

    def kill(self, name: str) -> None:
        """A host dies, and the cluster says so."""
        host = next(host for host in self.running if host.startswith(f"{name}."))
        self.end(host)
        self.news.append(HostEnded(host, "its worker process has died"))


class Lent(World):
    """A run whose hosts an engine brings."""

    def __init__(self, room: int, places_per_host: int = 4, found: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.cluster = FakeCluster(self, room, found)
        say = lambda text: self.lines.append(f"supervisor | {text}")  # noqa: E731
        context = EngineContext(
            lambda: self.now, say, lambda name, text: None, lambda: "tcp://trunk:1", lambda host: TICKET, self
        )
        self.fleet = Fleet(self.cluster, places_per_host, context)

    def joined(self) -> Mapping[str, HostState]:
        return self.places.joined()

    def send_home(self, name: str, reason: str) -> None:
        self.places.send_home(name, reason)

    def awaits(self, places: Mapping[str, int]) -> None:
        self.places.awaits(places)

    def abandon(self, name: str) -> None:
        self.places.abandon(name)

    def wait(self, seconds: float) -> None:
        """Lets time pass, for the engine as well."""
        end = self.now + seconds
        while self.now < end:
            self.fleet.turn()
            self.run(0.1)

    def work(self, count: int) -> None:
        """Actors begin, as many as there is room for."""
        for index in range(count):
            self.places.begin(spec_of(index), ASSIGNMENT)
        self.wait(0.5)

    @property
    def sizes(self) -> dict[str, int]:
        """Places of the hosts that have joined."""
        return {name: host.places for name, host in sorted(self.places.hosts.items())}

    @property
    def listed(self) -> AllowList:
        return self.keys
