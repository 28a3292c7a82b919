"""Actors on other machines. The user starts and ends them there; the supervisor only shows what they report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from transport.messages.control import Progress
from transport.messages.fields import MOST_ACTORS
from transport.metrics import Record

SILENT_SECONDS = 10.0
FORGOTTEN_SECONDS = 300.0


@dataclass
class RemoteActor:
    """One of them. Times are those of the supervisor's clock."""

    reported_at: float
    silent: bool = False
    record: Record = field(default_factory=dict)


class RemoteActors:
    """They report under keys of their own, so their names can be believed."""

    def __init__(self, clock: Callable[[], float], line: Callable[[str, str], None]) -> None:
        """`line(name, text)` writes a line of that process into the log."""
        self._clock, self._line = clock, line
        self._known: dict[str, RemoteActor] = {}

    @property
    def known(self) -> dict[str, RemoteActor]:
        """Those that have reported lately, by name."""
        return self._known

    @property
    def records(self) -> dict[str, Record]:
        """The newest records of those that report."""
        return {name: actor.record for name, actor in self._known.items() if actor.record and not actor.silent}

    @property
    def working(self) -> list[str]:
        """The names of those that report."""
        return [name for name, actor in self._known.items() if not actor.silent]

    def silent_seconds(self, name: str) -> float:
        return self._clock() - self._known[name].reported_at

    def on_progress(self, progress: Progress) -> None:
        """Takes a report."""
        now, actor = self._clock(), self._known.get(progress.name)
        if actor is None:
            # The last report of an actor of this machine that `headrace scale` has removed comes here, too.
            if progress.state == "stopping" or len(self._known) >= MOST_ACTORS:
                return
            actor = self._known[progress.name] = RemoteActor(now)
            self._line("supervisor", f"{progress.name} works on another machine")
        if actor.silent:
            self._line("supervisor", f"{progress.name} on another machine reports again")
        actor.reported_at, actor.silent = now, False
        if progress.record:
            actor.record = progress.record
            self._line(progress.name, f"{progress.record.get('steps_per_second', 0.0):,.0f} steps/s, on another machine")
        if progress.state == "stopping":
            self._line("supervisor", f"{progress.name} on another machine has stopped")
            del self._known[progress.name]

    def turn(self) -> None:
        """Notices those that have fallen silent."""
        for name, actor in list(self._known.items()):
            silent = self.silent_seconds(name)
            if silent >= FORGOTTEN_SECONDS:
                del self._known[name]
            elif silent >= SILENT_SECONDS and not actor.silent:
                actor.silent = True
                self._line("supervisor", f"{name} on another machine has not reported for {silent:.0f} s")
