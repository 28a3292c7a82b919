"""`headrace join`: runs actors of another machine's run on this machine."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, cast

from deploy.cli.common import complain
from deploy.cli.streams import UnbreakableStream
from deploy.config.values import COUNT
from deploy.errors import ConfigError
from deploy.places.remote.join import serve
from transport.messages.fields import MOST_PLACES
from transport.sockets.keys import read_ticket
from transport.system import core_count

ADDRESS = re.compile(r"tcp://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*):(\d{1,5})")
PACKAGE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
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
    places = core_count() if parsed.places is None else parsed.places
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
