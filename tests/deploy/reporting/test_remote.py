"""Actors on other machines."""

from __future__ import annotations

from deploy.reporting.remote import FORGOTTEN_SECONDS, SILENT_SECONDS, RemoteActors
from transport.messages.control import Progress
from transport.messages.fields import MOST_ACTORS


class Outside:
    """A clock, and the lines of the log."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.remote = RemoteActors(lambda: self.now, lambda name, text: self.lines.append(f"{name} | {text}"))

    def report(self, name: str = "actor-100", state: str = "ready", **record: float) -> None:
        self.remote.on_progress(Progress(name, 7, state, 1, record))  # type: ignore[arg-type]

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.remote.turn()


def test_what_it_reports_is_logged_and_kept() -> None:
    outside = Outside()
    outside.report()
    outside.report(steps_per_second=1234.4, success_rate=0.5)
    assert outside.lines == ["supervisor | actor-100 works on another machine", "actor-100 | 1,234 steps/s, on another machine"]
    assert outside.remote.records == {"actor-100": {"steps_per_second": 1234.4, "success_rate": 0.5}}
    outside.report(state="stopping")
    assert not outside.remote.known and "has stopped" in outside.lines[-1]
    outside.report("actor-3", state="stopping")  # one that was removed
    assert not outside.remote.known and "actor-100" in outside.lines[-1]


def test_silence_is_said_once_and_forgotten_in_the_end() -> None:
    outside = Outside()
    outside.report(steps_per_second=5.0)
    for _ in range(3):
        outside.wait(SILENT_SECONDS)
    assert outside.lines[2:] == ["supervisor | actor-100 on another machine has not reported for 10 s"]
    assert not outside.remote.records and outside.remote.known["actor-100"].silent
    outside.report()
    assert "reports again" in outside.lines[-1] and outside.remote.records
    outside.wait(FORGOTTEN_SECONDS)
    assert not outside.remote.known


def test_their_number_is_bounded() -> None:
    outside = Outside()
    for number in range(MOST_ACTORS + 5):
        outside.report(f"actor-{number}")
    assert len(outside.remote.known) == MOST_ACTORS
