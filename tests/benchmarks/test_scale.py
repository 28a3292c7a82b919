"""The page about scale has the tables that the script makes of the measured figures, and they follow from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import scale
from benchmarks.scale import PAGE, TABLES, Constants, figure, filled

KNOWN = Constants.measured()


def test_the_page_has_the_tables_of_the_script() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page, KNOWN) == page, "python -m benchmarks.scale --write"
    assert [match[2] for match in scale.BLOCK.finditer(page)] == list(TABLES)
    faster = replace(KNOWN, steps_per_second=2 * KNOWN.steps_per_second)
    assert filled(page, faster) != page and filled(filled(page, faster), KNOWN) == page


def test_figures_are_those_of_the_benchmarks() -> None:
    assert KNOWN.bytes_per_step == figure("replay", "together at 1.43 : 1", "on the wire")
    with pytest.raises(LookupError):
        figure("replay", "together at 1.43 : 1", "inserts per fortnight")
