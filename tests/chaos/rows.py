"""What a test of this folder says about itself: its row, its pass line, and what it measured."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Literal

import pytest

Length = Literal["short", "whole", "full"]
LENGTH_VARIABLE = "HEADRACE_CHAOS"
LEEWAY = 10.0  # of limits of time in `make test`
HOURS_VARIABLE = "HEADRACE_CHAOS_HOURS"
REPORT_VARIABLE = "HEADRACE_CHAOS_REPORT"  # a file that the table is written into, as JSON


def length() -> Length:
    """short: what `make test` does. whole: `make chaos`, 45 minutes on two cores. full: what rows ask for at most, hours."""
    found = os.environ.get(LENGTH_VARIABLE, "short")
    assert found in ("short", "whole", "full"), f"{LENGTH_VARIABLE} must be short, whole or full, not {found!r}"
    return found  # type: ignore[return-value]


def hours(usual: float) -> float:
    """How long a soak lasts; 0 unless somebody has asked for one, by its hours or by the full length."""
    return float(os.environ.get(HOURS_VARIABLE, usual if length() == "full" else 0))


@dataclass
class Row:
    """One line of the report. A test has `row` as a fixture and says `row.measured("30 kills", lost=0, doubled=0)`."""

    name: str
    fault: str
    pass_line: str
    figures: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def measured(self, *notes: str, **figures: object) -> None:
        """What was seen: sentences, and figures by name. Call it before asserting, so that a failure shows its figures."""
        self.notes += notes
        self.figures.update(figures)

    def limit(self, seconds: float) -> float:
        """A limit for a measured time. `make test` may share its machine with anything, so there it only tells slow from hung."""
        return LEEWAY * seconds if length() == "short" else seconds

    def times(self, short: float, whole: float, full: float | None = None) -> int:
        """How often, or for how many seconds, by the length of the rehearsal; a test that has 0 of it is skipped."""
        number = {"short": short, "whole": whole, "full": whole if full is None else full}[length()]
        if not number:
            longer = "make chaos" if whole else "make chaos ARGS=--full"
            pytest.skip(f"not in the {length()} rehearsal: {longer}")
        return int(number)
