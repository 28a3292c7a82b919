from __future__ import annotations

from tests.harness.waiting import ROOT
from tests.mutations.faults import Change, changed, place, read_faults, test_files

test_files.__test__ = False  # type: ignore[attr-defined]  # it is no test, whatever its name


def test_every_fault_fits_the_tree_and_some_test_is_to_find_it() -> None:
    faults = read_faults()
    assert len(faults) == len({fault.name for fault in faults}) >= 40
    assert [fault.name for fault in faults if place(ROOT, fault) is None] == [], "add a [[fault.change]] to faults.toml"
    assert [fault.name for fault in faults if not test_files(ROOT, fault.tests)] == []


def test_a_change_is_made_in_its_function_alone() -> None:
    source = "class A:\n    def f(self):\n        return 1\n\n\ndef f():\n    return 1\n"
    assert changed(source, Change("A.f", "return 1", "return 2")) == source.replace("return 1", "return 2", 1)
    assert changed(source, Change("f", "return 1", "return 2")) == source[::-1].replace("1 nruter", "2 nruter", 1)[::-1]
    assert changed(source, Change("f", "return 3", "return 2")) is None
    assert changed(source, Change("g", "return 1", "return 2")) is None
