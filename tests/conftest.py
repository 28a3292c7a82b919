"""For all tests: which of them share a core, and the table of rehearsed faults."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

from tests.chaos.rows import length

pytest_plugins = ("tests.chaos.report",)
ONE_BY_ONE = ("tests/flow/", "tests/chaos/", "tests/benchmarks/")  # start processes and wait for them, so that time counts

# `make test` is to say the same of the same code each time; longer rehearsals look for what nobody has thought of.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("searching", deadline=None)
settings.load_profile("steady" if length() == "short" else "searching")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests run side by side: those of these folders one after the other, in one worker; all others file by file."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "one by one" if nodeid.startswith(ONE_BY_ONE) else nodeid.partition("::")[0]

    return Scheduling(config, log)
