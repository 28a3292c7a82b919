from __future__ import annotations

import ast

import pytest

from tests.harness.waiting import ROOT
from tests.mutations.faults import LISTS, Change, changed, place, read_faults, test_ids

test_ids.__test__ = False  # type: ignore[attr-defined]  # it is no test, whatever its name


@pytest.mark.parametrize("name", LISTS)
def test_every_fault_fits_the_tree_and_some_test_is_to_find_it(name: str) -> None:
    faults = read_faults(LISTS[name])
    assert len(faults) == len({fault.name for fault in faults}) >= 40
    placed = {fault.name: place(ROOT, fault) for fault in faults}
    assert [fault for fault, found in placed.items() if found is None] == [], f"add a [[fault.change]] to {name}.toml"
    for _, mutant in filter(None, placed.values()):
        ast.parse(mutant)
    assert [fault.name for fault in faults if not test_ids(ROOT, fault.tests)] == []


def test_a_test_may_be_named_in_its_file() -> None:
    here = "tests/mutations/test_faults.py"
    names = ("test_faults.py::test_a_test_may_be_named_in_its_file", "test_faults.py::test_that_is_not_there")
    assert test_ids(ROOT, names) == [f"{here}::test_a_test_may_be_named_in_its_file"]
    assert here in test_ids(ROOT, ("test_faults.py",))


def test_a_change_is_made_in_its_function_alone() -> None:
    source = "class A:\n    def f(self):\n        return 1\n\n\ndef f():\n    return 1\n"
    assert changed(source, Change("A.f", "return 1", "return 2")) == source.replace("return 1", "return 2", 1)
    assert changed(source, Change("f", "return 1", "return 2")) == source[::-1].replace("1 nruter", "2 nruter", 1)[::-1]
    assert changed(source, Change("f", "return 3", "return 2")) is None
    assert changed(source, Change("g", "return 1", "return 2")) is None
