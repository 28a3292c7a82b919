"""For all tests: what hypothesis draws, and the table of rehearsed faults."""

from __future__ import annotations

from hypothesis import settings

from tests.chaos.rows import length

pytest_plugins = ("tests.chaos.report",)
# `make test` is to say the same of the same code each time; longer rehearsals look for what nobody has thought of.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("searching", deadline=None)
settings.load_profile("steady" if length() == "short" else "searching")
