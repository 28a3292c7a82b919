"""`headrace join`: runs actors of another machine's run on this machine."""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, cast

from deploy.cli.common import complain
from deploy.cli.streams import UnbreakableStream
from deploy.config.run import ConfigError, DeployConfig
from deploy.config.values import COUNT
from deploy.launch.access import Refused as RunRefused
from deploy.places.agent import Agent
from deploy.places.host_folder import HostFolder
from deploy.places.local import LocalPlace
from deploy.supervision.signals import stop_signals
from transport.lifetime import own_cores
from transport.messages import MOST_PLACES, PROTOCOL, Enrol, Enrolled, Refused
from transport.sockets.authenticator import new_pair
from transport.sockets.client import Client
from transport.sockets.keys import ClientKeys, Pair, read_ticket
from transport.text import plain

ADDRESS = re.compile(r"tcp://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*):(\d{1,5})")
PACKAGE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
TURN_SECONDS, ASK_SECONDS, NEWS_SECONDS, GOODBYE_SECONDS = 0.1, 1.0, 20.0, 0.5
DESCRIPTION = """\
Join a run that another machine has started: actors of the run are started here, and end with this command or with the run. This
machine connects to the run's machine and opens no port itself. `headrace invite` makes the ticket.

  headrace join tcp://10.0.0.5:7701 --ticket host-0.ticket --places 8
  headrace join tcp://10.0.0.5:7701 --ticket host-0.ticket --allow my_package
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument(
        "address", metavar="ADDRESS", help="of the run's supervisor: tcp://HOST:PORT, with the --deploy.port of the run"
    )
    target.add_argument("--ticket", type=Path, required=True, metavar="FILE", help="the ticket of this host")
    text = "actors that may run here at the same time (default: one for each core)"
    target.add_argument("--places", type=COUNT, metavar="K", help=text)
    text = "package whose code the run's settings may name (an environment of your own); may be given several times"
    target.add_argument("--allow", action="append", default=[], metavar="PACKAGE", help=text)


def run(parsed: argparse.Namespace) -> int:
    """Until the run has ended, Ctrl-C, or a long silence. Raises ConfigError, KeysError, Refused."""
    places = len(own_cores()) if parsed.places is None else parsed.places
    if not 1 <= places <= MOST_PLACES:
        raise ConfigError(f"--places: a host has 1 to {MOST_PLACES} places, not {places}")
    found = ADDRESS.fullmatch(parsed.address)
    if not found or not 1 <= int(found[1]) <= 65_535:
        raise ConfigError(f"{parsed.address!r} is not an address of a run: tcp://HOST:PORT, such as tcp://10.0.0.5:7701")
    for package in parsed.allow:
        if not PACKAGE.fullmatch(package):
            raise ConfigError(f"--allow {package!r} is not a package's name, such as my_package")
    if not parsed.ticket.is_file():
        raise ConfigError(f"--ticket {parsed.ticket}: there is no such file; `headrace invite RUN --hosts N` makes tickets")
    with contextlib.redirect_stdout(cast(TextIO, UnbreakableStream(sys.stdout))):
        name, status, reason = serve(parsed.address, read_ticket(parsed.ticket), places, parsed.allow)
    return complain(f"{name}: {reason}", status) if status else 0


def serve(address: str, ticket: ClientKeys, places: int, allowed: Sequence[str]) -> tuple[str, int, str]:
    """Is a host of the run whose supervisor is at `address`, until it leaves. The run's settings may name the packages of
    `allowed` for actors to import. To be called in the main thread. Returns the host's name, the exit status (0: all in order)
    and why it has left. Raises KeysError, Refused, OSError."""
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
    began = told = time.monotonic()
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
            if now > told + NEWS_SECONDS:
                told = now
                print(f"waiting for the supervisor at {address} …", flush=True)
    finally:
        link.close()
    raise RunRefused(f"no supervisor has answered at {address} for {patience:.0f} s: is the run up, and is this its address?")


def _work(name: str, places: int, link: Client, folder: HostFolder) -> Agent:
    def starter(memory_bytes: int) -> LocalPlace:
        sockets = folder.run.sockets if folder.servers else None
        here.append(LocalPlace(agent.line, memory_bytes, folders=[folder.run.path, *([sockets] if sockets else [])]))
        return here[0]

    here: list[LocalPlace] = []
    signals: list[int] = []
    agent = Agent(name, places, link, folder, starter, time.monotonic, lambda text: print(plain(text), flush=True))
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
