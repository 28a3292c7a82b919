"""The table of rehearsed faults and attacks, a line per test, at the end of every session that had some."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.rows import REPORT_VARIABLE, Row, length

PROPERTY = "rehearsed"  # as which a test's line travels to whoever prints the table, maybe another process
rows = pytest.StashKey[Row]()
Line = dict[str, Any]
lines: dict[str, Line] = {}  # by test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Notes how the test of a row has ended."""
    result = yield
    row = item.stash.get(rows, None)
    if row is not None and (result.when == "call" or result.outcome != "passed"):
        notes = [*row.notes, *([str(result.longrepr[2]).removeprefix("Skipped: ")] if result.outcome == "skipped" else [])]
        line = {"name": row.name, "fault": row.fault, "pass_line": row.pass_line, "verdict": result.outcome, "notes": notes}
        line |= {"figures": {name: _plain(value) for name, value in row.figures.items()}}
        result.user_properties.append((PROPERTY, line | {"seconds": round(time.monotonic() - row.began, 1)}))
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Takes a line in; what has failed stays so."""
    for name, line in report.user_properties:
        if name == PROPERTY and lines.get(report.nodeid, {}).get("verdict") != "failed":
            lines[report.nodeid] = line  # type: ignore[assignment]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table."""
    if not lines:
        return
    terminalreporter.section(f"rehearsed faults and attacks ({length()})")
    order = sorted(lines.values(), key=lambda line: (line["name"][0], int(line["name"].strip("HRSb")), line["name"]))
    for line in order:
        figures = ", ".join(f"{name} {_short(value)}" for name, value in line["figures"].items())
        seen = "; ".join([*line["notes"], *([figures] if figures else [])])
        terminalreporter.write_line(f"{line['name']:4} {line['verdict']:8} {line['seconds']:6.1f} s  {line['fault']}")
        terminalreporter.write_line(f"       asked: {line['pass_line']}")
        terminalreporter.write_line(f"       seen:  {seen or 'nothing'}")
    passed = sum(line["verdict"] == "passed" for line in order)
    terminalreporter.write_line(f"{passed} of {len(order)} tests of rows passed")
    if path := os.environ.get(REPORT_VARIABLE):
        Path(path).write_text(json.dumps({"length": length(), "rows": order}, indent=1) + "\n")


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | str | bool) else str(value)


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
