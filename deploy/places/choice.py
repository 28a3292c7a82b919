"""Which place a process gets."""

from __future__ import annotations

from collections.abc import Callable

from deploy.places.base import Place, Process
from deploy.places.remote.hosts import HostPlaces
from deploy.process_spec import ProcessSpec
from transport.messages.control import Assignment


class LocalOrHost:
    """An actor goes to a host where one has room; else here, as long as fewer than `local_actors` are here; else it waits.
    All other processes are here."""

    def __init__(self, local: Place, hosts: HostPlaces, local_actors: int, reclaim: Callable[[str], None]) -> None:
        """`reclaim(name)` gives an actor's name on the list of keys to a process of this machine; it may raise OSError."""
        self._local, self._hosts, self._local_actors, self._reclaim = local, hosts, local_actors, reclaim
        self._here: dict[str, Process] = {}  # actors, by name

    def begin(self, plan: ProcessSpec, assignment: Assignment | None) -> Process | None:
        if plan.role != "actor":
            return self._local.begin(plan, assignment)
        if (found := self._hosts.begin(plan, assignment)) is not None:
            return found
        self._here = {name: process for name, process in self._here.items() if process.poll() is None}
        if self._hosts.expects(plan.name) or len(self._here) >= self._local_actors:
            return None
        self._reclaim(plan.name)
        if (process := self._local.begin(plan, assignment)) is not None:
            self._here[plan.name] = process
        return process

    def turn(self) -> None:
        self._local.turn()
        self._hosts.turn()

    def close(self) -> None:
        self._hosts.close()
        self._local.close()
