"""The supervisor's view of a host that has joined its run, and of the processes there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from deploy.places.base import Exit, Usage
from transport.messages.control import Stop
from transport.messages.fields import Message
from transport.messages.hosts import Begin, Begun, End, HostServer

AWAY_SECONDS = 2.0  # of silence, after which its processes may be silent as well
LEAVE_SECONDS = 8.0  # that the actors of a host that leaves have to end; then its agent kills them


def server_of(host: str, role: str) -> str:
    """The name of a process that serves the actors of a host: relay-3 for host-3."""
    return f"{role}-{host.partition('-')[2]}"


class HostProcess:
    """A process on a host, from the order to begin it until the host reports its end or is itself gone."""

    fault = ""

    def __init__(self, name: str, incarnation: int, host: Host, begin: Begin | None) -> None:
        """`begin`: the order for the host; None for a process that runs there already."""
        self.name, self.incarnation, self.host, self.pid = name, incarnation, host.name, 0
        self.away, self.adopted = False, begin is None
        self.order: Begin | None = begin  # until the host lists it
        self.end: End | None = None  # sent until the host no longer lists it
        self.public = ""
        self.ended: Exit | None = None
        self._host, self._usage = host, Usage()

    def poll(self) -> Exit | None:
        return self.ended

    def ask(self) -> None:
        if self.end is None:
            self.end = End(self.incarnation, kill=False)
            self._host.tell(self.end)

    def kill(self) -> None:
        self.end = End(self.incarnation, kill=True)
        self._host.tell(self.end)

    def usage(self) -> Usage:
        return self._usage

    def listed(self, begun: Begun) -> None:
        """Takes what its host reports about it."""
        self.order, self.pid, self.fault = None, begun.pid, begun.fault
        self._usage = Usage(begun.rss_bytes, begun.cpu_percent)


@dataclass
class Host:
    """A host that has joined. Times are those of the supervisor's clock."""

    name: str
    incarnation: int
    places: int
    last_hello: float
    send: Callable[[str, Message, Sequence[bytes]], bool]
    folder: str = ""  # the digest of what it has of the run's folder
    leaving: bool = False
    home: Stop | None = None  # sent until it leaves
    back: float = float("-inf")  # when its last silence ended
    running: int = 0  # actors, including those that are to end
    processes: dict[int, HostProcess] = field(default_factory=dict)  # by incarnation
    adoptable: dict[str, Begun] = field(default_factory=dict)  # by name: started for the previous supervisor
    joined: float = 0.0
    servers: tuple[HostServer, ...] = ()

    def tell(self, message: Message, parts: Sequence[bytes] = ()) -> None:
        """Sends a message. If it is lost, the supervisor repeats it after the next HostHello."""
        self.send(self.name, message, parts)

    @property
    def number(self) -> int:
        return int(self.name.partition("-")[2])

    @property
    def free(self) -> int:
        """Places for further actors."""
        if self.leaving or self.home is not None or not self.folder:
            return 0
        unlisted = sum(process.order is not None for process in self.processes.values())
        return self.places - self.running - unlisted

    def figures(self, now: float) -> dict[str, Any]:
        """For the status."""
        silent = now - self.last_hello
        return {
            "name": self.name,
            "state": "silent" if silent > AWAY_SECONDS else "leaving" if self.leaving else "joined",
            "silent_seconds": round(silent, 1),
            "places": self.places,
            "actors": self.running,
        }

    def server_figures(self) -> list[dict[str, Any]]:
        """The processes that serve its actors, for the status."""
        return [
            {
                "name": server_of(self.name, server.role),
                "role": server.role,
                "pid": server.pid or None,
                "state": "ready" if server.pid else "starting",
                "silent_seconds": None,
                "restarts": server.restarts,
                "last_exit": server.last_exit or None,
                "steps_per_second": None,
                "rss_bytes": server.rss_bytes,
                "cpu_percent": server.cpu_percent,
                "host": self.name,
            }
            for server in self.servers
        ]
