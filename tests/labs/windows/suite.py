"""The lab's part of pytest (`-p tests.labs.windows.suite`): expects what wine.toml says of Wine, tells each failure at once, and
records each test's result, so that an interrupted check goes on where it was. `python -m` sums up the records of a folder."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

RECORDS = Path("/win/results")
EXPECTED = Path(__file__).with_name("wine.toml")


class Suite:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.part = config.args[0].removeprefix("/win/tree/")
        self.file = RECORDS / (self.part.replace("/", "-").replace(":", "-") + ".jsonl")
        given = getattr(config, "workerinput", None)  # xdist's, in a worker
        self.worker = given is not None
        self.first = (
            given is None or given["workerid"] == "gw0"
        )  # where workers collect, none but they know which tests there are
        self.done: set[str] = set(given["done"] if given else {row["test"] for row in rows(self.file)})

    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["done"] = sorted(self.done)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known = tomllib.loads(EXPECTED.read_text("utf-8"))
        found = {name for item in items for name in names(item)}
        lost = {test for group in known.values() for test in group if test.startswith(self.part)} - found
        if lost and self.first:
            why = f"{EXPECTED.name} names it, and it is not there"
            self.record(*({"test": test, "outcome": "failed", "why": why} for test in lost))
        for item in items:
            for name in names(item):
                if why := known["fails"].get(name):
                    item.add_marker(pytest.mark.xfail(reason=f"Wine: {why}"))
                if why := known["skipped"].get(name):
                    item.add_marker(pytest.mark.skip(reason=f"Wine: {why}"))
        items[:] = [item for item in items if item.nodeid not in self.done]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.worker or (report.when != "call" and report.passed):
            return
        outcome = "wine" if hasattr(report, "wasxfail") else report.outcome
        why = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr or "")
        if why.startswith("Skipped: Wine: "):
            outcome = "wine"
        test = re.sub(r"@[^@\]]*$", "", report.nodeid)  # without xdist's group
        self.record({"test": test, "outcome": outcome, "seconds": round(report.duration, 1), "why": why})
        if outcome == "failed":
            print(f"\nFAILED {report.nodeid} ({report.when})\n{why}", flush=True)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.worker:
            self.record({"test": report.nodeid, "outcome": "failed", "seconds": 0.0, "why": str(report.longrepr)})
            print(f"\nFAILED {report.nodeid} (collection)\n{report.longrepr}", flush=True)

    def record(self, *results: dict[str, object]) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(result) + "\n" for result in results)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Suite(config), "windows-suite")


def names(item: pytest.Item) -> tuple[str, str, str]:
    """What an entry may name: one case, a test, a file."""
    return item.nodeid, item.nodeid.partition("[")[0], item.nodeid.partition("::")[0]


def rows(file: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    except OSError:
        return []


def main() -> int:
    """One line for each part, one for each test that failed."""
    failed = 0
    for file in sorted(RECORDS.glob("*.jsonl")):
        found = rows(file)
        bad = [row["test"] for row in found if row["outcome"] == "failed"]
        counts = Counter(row["outcome"] for row in found)
        print(f"{file.stem}: " + ", ".join(f"{counts[name]} {name}" for name in ("passed", "skipped", "wine", "failed")))
        print(*(f"  {test}\n" for test in bad), sep="", end="")
        failed += len(bad)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
