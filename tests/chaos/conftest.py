"""Gives every test of this folder its row, and the time that it takes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.report import rows
from tests.chaos.rows import Row, length
from tests.learner.test_loop import Bench

LONG_SECONDS = 7200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of a rehearsal that is not short may take longer than others."""
    if length() == "short":
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_SECONDS))


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Iterator[Row]:
    """The row that the test's mark names: `@pytest.mark.row("R1", "an actor is killed", "lost = doubled = torn = 0")`."""
    mark = request.node.get_closest_marker("row")
    made = Row(*mark.args)
    request.node.stash[rows] = made
    yield made


@pytest.fixture
def bench_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Bench]]:
    """Makes a learner's replay, feed and folder in this process. The handlers of signals are put back."""
    monkeypatch.setattr("learner.devices.capabilities.set_up", lambda device, threads: None)
    handlers, made = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}, list[Bench]()

    def make(folder: Path) -> Bench:
        made.append(Bench(folder))
        return made[-1]

    yield make
    for bench in made:
        bench.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def bench(bench_in: Callable[[Path], Bench], tmp_path: Path) -> Bench:
    return bench_in(tmp_path)
