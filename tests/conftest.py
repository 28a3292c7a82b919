"""For all tests: which of them share a core, and the table of rehearsed faults."""

from __future__ import annotations

import pytest

pytest_plugins = ("tests.chaos.report",)


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run side by side, those that start processes of their own and wait for them run one after the other."""
    for item in items:
        if item.get_closest_marker("flow") or item.get_closest_marker("chaos"):
            item.add_marker(pytest.mark.xdist_group("processes"))
