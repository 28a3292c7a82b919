"""The hosts that an engine has started for a run: how many, which are replaced, which go home.

A cluster may take long to find room for a host, and long to notice that one is dead: so a host counts only when it has joined the
run, and counts as gone when the run does not hear it any more, whatever the cluster says.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from deploy.engines.base import EngineContext
from deploy.places.base import HostState
from deploy.process_spec import restart_seconds
from transport.sockets.keys import HOST
from transport.text import listed

STARTS_PER_TURN = 4
JOIN_SECONDS = 90.0  # for a host that has a machine to join the run
HEALTHY_SECONDS = 60.0  # in the run, after which the next start of a host is not delayed
LONGEST_DELAY_SECONDS = 60.0
LEAVE_SECONDS = 30.0  # for a host to end after it was sent home


class Connected(Struct, frozen=True, tag=True):
    """The cluster answers, for the first time or again. `hosts` are those of this run that it has."""

    hosts: tuple[str, ...]


class Disconnected(Struct, frozen=True, tag=True):
    """The cluster cannot be asked until it is Connected again."""


class Waiting(Struct, frozen=True, tag=True):
    """The cluster has no room for a host yet. `reason` says what it needs."""

    host: str
    reason: str


class Placed(Struct, frozen=True, tag=True):
    """A host has a machine now."""

    host: str


class HostEnded(Struct, frozen=True, tag=True):
    """A host has ended, or could not be started."""

    host: str
    reason: str


Event = Connected | Disconnected | Waiting | Placed | HostEnded


class Cluster(Protocol):
    """A cluster, which starts hosts under names such as host-3.8.1f6c (host-3, 8 places). No call waits, but `close`."""

    def start(self, host: str, places: int, ticket: str) -> None:
        """Asks for a host, whose agent joins with the content of this ticket."""

    def end(self, host: str) -> None:
        """Ends a host at once, also one that waits for room. Does nothing where there is none of that name."""

    def events(self) -> list[Event]:
        """The events since the last call."""

    def close(self) -> None:
        """Ends every host of the run, and leaves the cluster."""


@dataclass
class Member:
    """A host that is wanted. Times are those of the supervisor's clock."""

    name: str
    places: int
    start_at: float
    key: str = ""  # its name in the cluster; empty until it is asked for
    placed: float | None = None  # since when it has a machine
    joined: float | None = None
    leaving: float | None = None
    failures: int = 0  # in a row

    @property
    def number(self) -> int:
        return int(self.name.partition("-")[2])


class Fleet:
    """An engine over a cluster that starts one host at a time."""

    def __init__(self, cluster: Cluster, places_per_host: int, context: EngineContext) -> None:
        self.members: dict[str, Member] = {}
        self._cluster, self._places_per_host, self._context = cluster, places_per_host, context
        self._wanted, self._connected = 0, False
        self._waiting: dict[str, list[str]] = {}  # reason -> hosts, until it has been said

    def want(self, places: int) -> None:
        self._wanted = places

    def turn(self) -> None:
        events = self._cluster.events()
        for event in events:
            self._take(event)
        if not any(isinstance(event, Waiting) for event in events):  # those of many hosts arrive over several turns
            self._say_who_waits()
        self._watch()
        if self._connected:
            self._grow()
            self._shrink()
            self._start()
        awaited = (member for member in self.members.values() if member.joined is None and member.leaving is None)
        self._context.hosts.awaits({member.name: member.places for member in awaited})

    def close(self) -> None:
        self._cluster.close()
        self.members.clear()

    # ---- what the cluster says

    def _take(self, event: Event) -> None:
        if isinstance(event, Connected):
            self._connect(event.hosts)
            return
        if isinstance(event, Disconnected):
            self._connected = False  # a host that was asked for now would be missing in the next Connected, and be started twice
            return
        member = next((member for member in self.members.values() if member.key == event.host), None)
        if member is None:
            return
        if isinstance(event, Waiting):
            self._waiting.setdefault(event.reason, []).append(member.name)
        elif isinstance(event, Placed):
            member.placed = self._context.clock()
        else:
            self._lose(member, event.reason)

    def _connect(self, keys: Sequence[str]) -> None:
        self._connected, now = True, self._context.clock()
        for member in [member for member in self.members.values() if member.key and member.key not in keys]:
            self._lose(member, "the cluster has it no more")
        known = {member.key for member in self.members.values()}
        for key in keys:
            name, places, _ = key.split(".")
            if key in known:
                continue
            if name in self.members:
                self._cluster.end(key)  # it was replaced while the cluster did not answer
            else:  # a supervisor before this one has started it
                self.members[name] = Member(name, int(places), now, key, placed=now)

    def _say_who_waits(self) -> None:
        for reason, names in self._waiting.items():
            self._context.say(f"{listed(names)} {'waits' if len(names) == 1 else 'wait'} for a machine: {reason}")
        self._waiting.clear()

    # ---- what the run hears

    def _watch(self) -> None:
        now, joined = self._context.clock(), self._context.hosts.joined()
        for member in list(self.members.values()):
            if member.leaving is not None:
                if now - member.leaving > LEAVE_SECONDS and self._connected:
                    self._end(member)
            elif member.name in joined:
                member.joined = now if member.joined is None else member.joined
            elif member.joined is not None:
                self._cluster.end(member.key)
                self._lose(member, "")  # the run has said why
            elif member.placed is not None and now - member.placed > JOIN_SECONDS:
                self._cluster.end(member.key)
                address = self._context.address()
                self._lose(member, f"it has not joined for {JOIN_SECONDS:.0f} s: can it reach {address}? (--deploy.bind)")

    def _lose(self, member: Member, reason: str) -> None:
        """Plans another start of a host that has ended; of one that was sent home it does not."""
        now = self._context.clock()
        if member.leaving is not None:
            del self.members[member.name]
            return
        self._abandon(member)
        healthy = member.joined is not None and now - member.joined > HEALTHY_SECONDS
        failures = 1 if healthy else member.failures + 1
        delay = restart_seconds(failures, LONGEST_DELAY_SECONDS)
        why = f"{reason}; " if reason else ""
        self._context.say(f"{member.name}: {why}another one is started" + (f" in {delay:.0f} s" if delay else ""))
        self.members[member.name] = Member(member.name, member.places, now + delay, failures=failures)

    def _abandon(self, member: Member) -> None:
        try:
            self._context.hosts.abandon(member.name)
        except OSError as error:
            self._context.say(f"alarm: {error}")

    # ---- what is wanted

    def _grow(self) -> None:
        missing = self._wanted - sum(member.places for member in self.members.values() if member.leaving is None)
        while missing > 0:
            number = next(number for number in range(len(self.members) + 1) if f"{HOST}-{number}" not in self.members)
            places = min(missing, self._places_per_host)
            self.members[f"{HOST}-{number}"] = Member(f"{HOST}-{number}", places, self._context.clock())
            missing -= places

    def _shrink(self) -> None:
        """Takes hosts back that wait for a machine, the last first; then sends those home whose actors have room elsewhere."""
        staying = [member for member in self.members.values() if member.leaving is None]
        surplus = sum(member.places for member in staying) - self._wanted
        if surplus <= 0:
            return
        joined = self._context.hosts.joined()
        free = sum(joined[member.name].free for member in staying if member.name in joined)
        for member in sorted(staying, key=lambda member: (_actors(member, joined), -member.number)):
            state = joined.get(member.name)
            if member.places > surplus or (state is None and member.placed is not None):
                continue
            if state is None:
                self._end(member)
            elif state.actors <= free - state.free:
                member.leaving = self._context.clock()
                self._context.hosts.send_home(member.name, "fewer places are wanted")
                free -= state.free + state.actors
            else:
                continue
            surplus -= member.places

    def _end(self, member: Member) -> None:
        if member.key:
            self._cluster.end(member.key)
            self._abandon(member)
        del self.members[member.name]

    def _start(self) -> None:
        now, starts = self._context.clock(), 0
        for member in self.members.values():
            if member.key or now < member.start_at or starts == STARTS_PER_TURN:
                continue
            starts += 1
            try:
                ticket = self._context.ticket(member.name)
            except OSError as error:
                self._context.say(f"alarm: no ticket could be made for {member.name}: {error}")
                member.start_at = now + LONGEST_DELAY_SECONDS
                continue
            member.key = f"{member.name}.{member.places}.{secrets.token_hex(4)}"
            self._cluster.start(member.key, member.places, ticket)


def _actors(member: Member, joined: Mapping[str, HostState]) -> int:
    """Those that are at work on a host; one that has not joined goes first."""
    return joined[member.name].actors if member.name in joined else -1
