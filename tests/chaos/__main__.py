"""`make chaos`: rehearses faults and attacks, row by row, and prints a table of what was seen."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

from tests.chaos.rows import HOURS_VARIABLE, LENGTH_VARIABLE, REPORT_VARIABLE


def main() -> int:
    """All rows, or those that are named."""
    parser = argparse.ArgumentParser(prog="make chaos ARGS=…", description=__doc__)
    parser.add_argument("rows", nargs="*", help="rows to rehearse, R1 and S6 for example; default: all")
    lengths = parser.add_mutually_exclusive_group()
    lengths.add_argument("--short", action="store_true", help="what make test does, under two minutes")
    lengths.add_argument("--full", action="store_true", help="every count and duration as the rows ask for them: hours")
    parser.add_argument("--hours", type=float, metavar="H", help="rehearse R27, the soak, as well, for so long; --full: 6")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there as well")
    parsed = parser.parse_args()
    os.environ[LENGTH_VARIABLE] = "short" if parsed.short else "full" if parsed.full else "whole"
    if parsed.hours:
        os.environ[HOURS_VARIABLE] = str(parsed.hours)
    if parsed.json:
        os.environ[REPORT_VARIABLE] = str(parsed.json.resolve())
    return int(pytest.main(["-q", "-m", "chaos", str(Path(__file__).parent)], plugins=[Chosen(parsed.rows)]))


class Chosen:
    """Leaves out the rows that were not named."""

    def __init__(self, wanted: list[str]) -> None:
        """`wanted`: names; all when empty."""
        self._wanted = {name.upper() for name in wanted}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselects the others; an unknown name is an error."""
        names = {id(item): mark.args[0].upper() for item in items if (mark := item.get_closest_marker("row"))}
        if unknown := self._wanted - set(names.values()):
            known = ", ".join(sorted(set(names.values())))
            raise pytest.UsageError(f"no row is called {', '.join(sorted(unknown))}; known: {known}")
        if self._wanted:
            config.hook.pytest_deselected(items=[item for item in items if names.get(id(item)) not in self._wanted])
            items[:] = [item for item in items if names.get(id(item)) in self._wanted]


if __name__ == "__main__":
    sys.exit(main())
