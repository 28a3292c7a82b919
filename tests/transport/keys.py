"""A run's keys, and sockets that use them, for tests."""

from __future__ import annotations

from pathlib import Path

from transport.sockets import keys
from transport.sockets.authenticator import new_pair
from transport.sockets.client import Client
from transport.sockets.keys import Keys
from transport.sockets.server import Server


class Ring:
    """The keys of a run with `actors` actors."""

    def __init__(self, folder: Path, actors: int = 2) -> None:
        self.folder = folder
        keys.make(folder, (*keys.ALWAYS, *keys.actor_names(actors)), new_pair)

    def of(self, name: str) -> Keys:
        return Keys(self.folder, name)

    def server(self, endpoint: str = "replay", address: str = "tcp://127.0.0.1:*") -> Server:
        return Server(address, keys=self.of(keys.OWNERS[endpoint]), endpoint=endpoint)

    def client(self, server: Server, name: str = "actor-0", endpoint: str = "replay") -> Client:
        return Client(server.address, keys=self.of(name), endpoint=endpoint)
