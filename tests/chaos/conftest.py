"""Gives every test of this folder its row, and the time that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.report import rows
from tests.chaos.rows import Row, length

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
