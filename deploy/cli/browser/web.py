"""`headrace web`: runs in a browser, live."""

from __future__ import annotations

import argparse
import importlib.util
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from deploy import runs
from deploy.cli.common import DONE, add_run, ask_supervisor, exchange
from deploy.cli.runs import scale
from deploy.cli.steering import give
from deploy.errors import ConfigError
from deploy.launch import access
from deploy.launch.resources import NoSpace
from learner.devices import installing
from transport.messages.control import Look, OrderOutcome, Seen, Steer, Stop, Stopping, What
from transport.messages.replay import Refused
from transport.run_dir import RunDir

if TYPE_CHECKING:
    from deploy.views.web.server import Steering, WebServer

USAGE_LINE = "headrace web [RUN | --all] [--read-only] [--port N]"
DESCRIPTION = """\
Show a run in a browser, live: what it does, what limits it, how it learns, its log. Before, while and after it is up.

It listens on 127.0.0.1 only, and prints two links. The first shows the page; the second also has the buttons (pause, checkpoint,
evaluate, scale, stop, and "take over": your keys choose what an actor does). For a run on another machine, forward the port:
ssh -L PORT:127.0.0.1:PORT MACHINE
"""
REQUIRED = ("starlette", "uvicorn")
ORDER_SECONDS = 20.0  # for which the page waits for the outcome
LOOK_SECONDS = 3.0  # for which it waits for an actor to show what it sees


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
    """Lines with the links that a user opens."""
    found = [f"page to look at:        {server.access.link(server.address)}"]
    steer = server.access.link(server.address, control=True)
    return [*found, f"page with its buttons:  {steer}"] if server.access.control else found


def require_web() -> None:
    """Raises ConfigError where the extra is not installed."""
    if missing := [name for name in REQUIRED if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"the page needs {' and '.join(missing)}: {installing.headrace('web')}")


class TheseRuns:
    """The runs of a list, or all that are in ./runs at the time."""

    def __init__(self, chosen: Sequence[RunDir] | None) -> None:
        self._chosen = chosen

    def all(self) -> Mapping[str, RunDir]:
        return {run.name: run for run in (runs.all_runs() if self._chosen is None else self._chosen)}

    def beside(self) -> Mapping[str, RunDir]:
        """These runs, and every other one in their folders."""
        folders = [runs.RUNS] if self._chosen is None else list(dict.fromkeys(run.path.parent for run in self._chosen))
        return {run.name: run for folder in folders for run in runs.all_runs(folder)} | dict(self.all())

    def first(self) -> str | None:
        """The run that is up, otherwise the one that was up last."""
        known = list(self.all().values())
        return next((run.name for run in known if runs.is_up(run)), known[0].name if known else None)


class Buttons:
    """Requests of the page to a run's supervisor: its buttons, and the observations of an actor."""

    def scale(self, run: RunDir, actors: int) -> str:
        try:
            return scale.change(run, actors)
        except (ConfigError, NoSpace, access.RunRefused, scale.NoAnswer) as error:
            return str(error)

    def order(self, run: RunDir, what: What) -> str:
        try:
            return give(run, what, ORDER_SECONDS).text
        except ConfigError as error:
            return str(error)

    def stop(self, run: RunDir) -> str:
        """Asks the run to stop, and does not wait for its end: the page shows that."""
        if not runs.is_up(run):
            return f"run {run.name} is not up"
        if refused := runs.refused_orders(run):
            return refused
        asked = isinstance(ask_supervisor(run, Stop("stopped from the page")), Stopping)
        return f"run {run.name} is stopping" if asked else f"the supervisor of run {run.name} does not answer"

    def look(self, run: RunDir, actor: str) -> tuple[Seen, Sequence[bytes]] | str:
        return self._shown(run, Look(actor, secrets.randbits(62)))

    def steer(self, run: RunDir, steering: Steering) -> tuple[Seen, Sequence[bytes]] | str:
        message = Steer(steering.actor, secrets.randbits(62), steering.person, steering.keys, steering.ends)
        return self._shown(run, message)

    def _shown(self, run: RunDir, message: Look | Steer) -> tuple[Seen, Sequence[bytes]] | str:
        """The answer of an actor."""
        if not runs.is_up(run):
            return f"run {run.name} is not up"
        arrived, actor = exchange(run, message, LOOK_SECONDS), message.actor
        match arrived[0] if arrived else None:
            case Seen() as seen:
                return seen, arrived[1] if arrived else ()
            case OrderOutcome(text=text) | Refused(reason=text):
                return str(text)
        return f"{actor} has not answered in {LOOK_SECONDS:.0f} s: it may wait for replay, be in a long step, or have just ended"
