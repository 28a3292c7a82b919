"""What `headrace web` and `headrace up --web` share."""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Mapping, Sequence

from deploy import runs
from deploy.cli.common import ask_supervisor, exchange
from deploy.cli.runs import scale
from deploy.cli.steering.common import give
from deploy.errors import ConfigError
from deploy.launch import access
from deploy.launch.resources import NoSpace
from learner.devices import installing
from transport.messages.control import Look, Outcome, Seen, Stop, Stopping, What
from transport.messages.replay import Refused
from transport.run_dir import RunDir

REQUIRED = ("starlette", "uvicorn")
ORDER_SECONDS = 20.0  # for which the page waits for the outcome
LOOK_SECONDS = 3.0  # for which it waits for an actor to show what it sees


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
        """The run that is up, else the one that was up last."""
        known = list(self.all().values())
        return next((run.name for run in known if runs.is_up(run)), known[0].name if known else None)


class Buttons:
    """What the page asks of a run's supervisor: its buttons, and what an actor sees."""

    def scale(self, run: RunDir, actors: int) -> str:
        try:
            return scale.change(run, actors)
        except (ConfigError, NoSpace, access.Refused, scale.NoAnswer) as error:
            return str(error)

    def order(self, run: RunDir, what: What) -> str:
        try:
            return give(run, what, ORDER_SECONDS).text
        except ConfigError as error:
            return str(error)

    def stop(self, run: RunDir) -> str:
        """Asks, and does not wait: the page shows how it goes on."""
        if not runs.is_up(run):
            return f"run {run.name} is not up"
        asked = isinstance(ask_supervisor(run, Stop("stopped from the page")), Stopping)
        return f"run {run.name} is stopping" if asked else f"the supervisor of run {run.name} does not answer"

    def look(self, run: RunDir, actor: str) -> tuple[Seen, Sequence[bytes]] | str:
        if not runs.is_up(run):
            return f"run {run.name} is not up"
        arrived = exchange(run, Look(actor, secrets.randbits(62)), LOOK_SECONDS)
        match arrived[0] if arrived else None:
            case Seen() as seen:
                return seen, arrived[1] if arrived else ()
            case Outcome(text=text) | Refused(reason=text):
                return str(text)
        return f"{actor} has not answered in {LOOK_SECONDS:.0f} s: it may wait for replay, be in a long step, or have just ended"
