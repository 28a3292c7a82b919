"""Gives every test its row, and closes with the table."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.rows import Row, length

REPORT_VARIABLE = "HEADRACE_CHAOS_REPORT"  # a file that the table is written into, as JSON
SHORT_SECONDS, LONG_SECONDS = 120, 7200
rows = pytest.StashKey[Row]()
report: list[Row] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A rehearsal that is not short takes its time."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SHORT_SECONDS if length() == "short" else LONG_SECONDS))


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Iterator[Row]:
    """The row that the test's mark names: `@pytest.mark.row("R1", "an actor is killed", "lost = doubled = torn = 0")`."""
    mark = request.node.get_closest_marker("row")
    made = Row(*mark.args)
    request.node.stash[rows] = made
    yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Notes how the test of a row has ended."""
    result = yield
    row = item.stash.get(rows, None)
    if row is not None and (result.when == "call" or result.outcome != "passed"):
        row.seconds = time.monotonic() - row.began
        if row not in report:
            report.append(row)
        if result.outcome == "skipped":
            row.verdict = "skipped"
            row.notes.append(str(result.longrepr[2]).removeprefix("Skipped: "))
        elif row.verdict != "failed":
            row.verdict = result.outcome
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table."""
    if not report:
        return
    terminalreporter.section(f"rehearsed faults and attacks ({length()})")
    order = sorted(report, key=lambda row: (row.name[0], int("".join(filter(str.isdigit, row.name))), row.name))
    for row in order:
        figures = ", ".join(f"{name} {_short(value)}" for name, value in row.figures.items())
        seen = "; ".join([*row.notes, *([figures] if figures else [])])
        terminalreporter.write_line(f"{row.name:4} {row.verdict:8} {row.seconds:6.1f} s  {row.fault}")
        terminalreporter.write_line(f"       asked: {row.pass_line}")
        terminalreporter.write_line(f"       seen:  {seen or 'nothing'}")
    passed = sum(row.verdict == "passed" for row in report)
    terminalreporter.write_line(f"{passed} of {len(report)} tests of rows passed")
    if path := os.environ.get(REPORT_VARIABLE):
        kept = ("name", "fault", "pass_line", "verdict", "notes", "figures", "seconds")
        document = {"length": length(), "rows": [{name: getattr(row, name) for name in kept} for row in order]}
        Path(path).write_text(json.dumps(document, indent=1, default=str) + "\n")


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
