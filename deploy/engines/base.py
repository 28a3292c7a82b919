"""The protocol between a run and an engine, which brings machines to it: a cluster of Ray, say.

The run says how many places for actors it wants. The engine starts hosts (`headrace join`) where its cluster has room, starts
others for those that are gone, and sends home those that are too many. It knows nothing of actors: which of them runs where, and
whether they fail, is decided by the supervisor. Built in: `deploy/engines/ray.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from deploy.places.base import HostState
from transport.names import UnknownName, find
from transport.run_dir import RunDir

ENGINES = {"": "deploy.engines.base:NoEngine", "ray": "deploy.engines.ray_engine:RayEngine"}


class Hosts(Protocol):
    """The hosts of the run, by name; deploy/places/remote/hosts.py."""

    def joined(self) -> Mapping[str, HostState]:
        """Those that have joined, until they have left or were silent for too long."""

    def send_home(self, name: str, reason: str) -> None:
        """Has a host end in order. Its actors send what they have, and start elsewhere."""

    def awaits(self, places: Mapping[str, int]) -> None:
        """The hosts that the engine has asked for and that have not joined, with their places: for the status."""

    def abandon(self, name: str) -> None:
        """A host is no more. Its actors start elsewhere at once, and its key is refused. Raises KeysError, OSError."""


class EngineContext(NamedTuple):
    """The parts of a run that an engine uses."""

    clock: Callable[[], float]
    say: Callable[[str], None]  # a line of the supervisor in the log
    line: Callable[[str, str], None]  # (name, line) of the log; any thread may call it
    address: Callable[[], str | None]  # of the supervisor, as hosts reach it
    ticket: Callable[[str], str]  # the text of the ticket of host-3; raises KeysError, OSError
    hosts: Hosts


class Engine(Protocol):
    """Used by one thread, that of the supervisor, which none of the calls may hold up, but for `close`."""

    def __init__(self, run: RunDir, config: RunConfig, context: EngineContext) -> None:
        """Starts no host yet."""

    @classmethod
    def prepare(cls, config: RunConfig) -> dict[str, Any]:
        """Checks before a launch that the engine can be used. Returns settings that it has where the user gives no others, as
        a tree of keys. Raises ConfigError, RunRefused."""

    def want(self, places: int) -> None:
        """Sets the number of places that all hosts together are to have."""

    def turn(self) -> None:
        """Called about ten times a second until the run stops."""

    def close(self) -> None:
        """Ends all hosts that it has started; they have been sent home already."""


class NoEngine:
    """People start the hosts, or ssh, or Slurm."""

    def __init__(self, run: RunDir, config: RunConfig, context: EngineContext) -> None: ...

    @classmethod
    def prepare(cls, config: RunConfig) -> dict[str, Any]:
        return {}

    def want(self, places: int) -> None: ...

    def turn(self) -> None: ...

    def close(self) -> None: ...


def find_engine(name: str) -> type[Engine]:
    """The engine of that name; an empty name means none. Raises ConfigError."""
    try:
        found: type[Engine] = find(name, ENGINES, "engine")
    except UnknownName as error:
        raise ConfigError(f"--on: {error}") from error
    return found
