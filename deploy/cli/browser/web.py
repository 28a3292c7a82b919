"""`headrace web`: runs in a browser, live."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deploy import runs
from deploy.cli.browser.common import Buttons, TheseRuns, require_web
from deploy.cli.common import DONE, add_run
from deploy.errors import ConfigError

if TYPE_CHECKING:
    from deploy.views.web.server import WebServer

USAGE_LINE = "headrace web [RUN | --all] [--read-only] [--port N]"
DESCRIPTION = """\
Show a run in a browser, live: what it does, what limits it, how it learns, its log. Before, while and after it is up.

It listens on 127.0.0.1 only, and prints two links. The first shows the page; the second also has the buttons (pause, checkpoint,
evaluate, scale, stop). For a run on another machine, forward the port:
ssh -L PORT:127.0.0.1:PORT MACHINE
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    add_run(target)
    target.add_argument("--all", action="store_true", help="show every run in ./runs, also those that begin later")
    target.add_argument("--read-only", action="store_true", help="have no buttons")
    target.add_argument("--port", type=int, default=0, metavar="N", help="listen on this port (default: any that is free)")


def run(parsed: argparse.Namespace) -> int:
    """Serves until Ctrl-C."""
    require_web()
    from deploy.views.web.server import WebServer

    if parsed.all and (parsed.run or parsed.run_flag):
        raise ConfigError("--all shows every run: leave the name of the run out")
    if not 0 <= parsed.port <= 65535:
        raise ConfigError(f"--port: there is no port {parsed.port}")
    chosen = None if parsed.all else [runs.chosen(parsed)]
    try:
        server = WebServer(TheseRuns(chosen), Buttons(), parsed.read_only, parsed.port)
    except OSError as error:
        raise ConfigError(
            f"--port: cannot listen on port {parsed.port} ({error.strerror}); leave it out for any free one"
        ) from error
    print("\n".join(links(server)))
    print("Ctrl-C ends the page; runs go on", flush=True)
    server.serve()
    return DONE


def links(server: WebServer) -> list[str]:
    """What a user opens, as lines."""
    found = [f"page to look at:        {server.access.link(server.address)}"]
    steer = server.access.link(server.address, control=True)
    return [*found, f"page with its buttons:  {steer}"] if server.access.control else found
