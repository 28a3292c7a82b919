"""Joins another machine's run as a host: starts actors of that run here until the run or this process ends."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.config.run import DeployConfig
from deploy.errors import RunRefused
from deploy.places.local import LocalPlace
from deploy.places.remote.agent import HostAgent
from deploy.places.remote.host_folder import HostFolder
from deploy.signals import stop_signals
from transport.messages.fields import PROTOCOL
from transport.messages.hosts import Enrol, Enrolled
from transport.messages.replay import Refused
from transport.sockets.authenticator import new_pair
from transport.sockets.client import Client
from transport.sockets.keys import ClientKeys, Pair
from transport.text import plain

TURN_SECONDS, ASK_SECONDS, NOTICE_SECONDS, GOODBYE_SECONDS = 0.1, 1.0, 20.0, 0.5


def serve(address: str, ticket: ClientKeys, places: int, allowed: Sequence[str]) -> tuple[str, int, str]:
    """Joins the run whose supervisor is at `address` and works for it until this host leaves. Call it in the main thread.

    `allowed`: packages that the run's settings may name for actors to import. Returns the host's name, the exit status (0: all in
    order) and the reason for leaving. Raises KeysError, Refused, OSError.
    """
    own = new_pair()
    name = enrol(address, ticket, own)
    folder = Path(tempfile.mkdtemp(prefix="headrace-host-"))
    link = Client(address, keys=ClientKeys(name, own, {"supervisor": ticket.server("supervisor")}), endpoint="supervisor")
    files = HostFolder(folder, allowed, own, places)
    try:
        agent = _work(name, places, link, files)
        return name, agent.exit_status, agent.reason
    finally:
        link.close(GOODBYE_SECONDS)
        files.run.remove_sockets()
        shutil.rmtree(folder, ignore_errors=True)


def enrol(address: str, ticket: ClientKeys, own: Pair) -> str:
    """Has the key of this host put on the run's list. Returns the host's name. Raises Refused."""
    began = printed = time.monotonic()
    patience = DeployConfig().orphan_seconds
    link = Client(address, keys=ticket, endpoint="supervisor")
    try:
        while (now := time.monotonic()) < began + patience:
            link.send(Enrol(PROTOCOL, own.public))
            arrived = link.receive(ASK_SECONDS)
            if arrived is not None and isinstance(arrived[0], Enrolled):
                return arrived[0].name
            if arrived is not None and isinstance(arrived[0], Refused):
                raise RunRefused(arrived[0].reason)
            if now > printed + NOTICE_SECONDS:
                printed = now
                print(f"waiting for the supervisor at {address} …", flush=True)
    finally:
        link.close()
    raise RunRefused(f"no supervisor has answered at {address} for {patience:.0f} s: is the run up, and is this its address?")


def _work(name: str, places: int, link: Client, folder: HostFolder) -> HostAgent:
    def starter(memory_bytes: int) -> LocalPlace:
        sockets = folder.run.sockets if folder.servers else None
        here.append(LocalPlace(agent.line, memory_bytes, folders=[folder.run.path, *([sockets] if sockets else [])]))
        return here[0]

    here: list[LocalPlace] = []
    signals: list[int] = []
    agent = HostAgent(name, places, link, folder, starter, time.monotonic, lambda text: print(plain(text), flush=True))
    try:
        with stop_signals(lambda number, frame: signals.append(number)):
            while not agent.over:
                while signals:
                    number = signals.pop(0)
                    by = "you" if number == signal.SIGINT else signal.Signals(number).name
                    agent.leave(f"stopped by {by}", at_once=agent.leaving and number == signal.SIGINT)
                agent.turn(TURN_SECONDS)
    finally:
        for place in here:
            place.close()
    return agent
