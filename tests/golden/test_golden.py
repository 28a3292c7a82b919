from __future__ import annotations

import numpy as np
import pytest

from learner.inference import int8
from tests.golden import figures
from tests.golden.compute import CASES, figures_of

EXPECTED = figures.read()


@pytest.mark.parametrize("name", CASES)
def test_what_is_computed_is_what_was_computed(name: str) -> None:
    if name.endswith("int8") and (reason := int8.missing()):
        pytest.skip(reason)
    exactly = EXPECTED["processor"] == figures.processor()
    assert figures.differences(figures_of(name), EXPECTED[name], exactly) == []


def test_every_figure_of_the_file_is_computed() -> None:
    assert EXPECTED.keys() - {"processor"} == CASES.keys()


def test_another_array_has_other_figures() -> None:
    array = np.linspace(-1, 1, 50, dtype=np.float32)
    was = {"array": figures.figure(array)}
    near = array.copy()
    near[7] = np.nextafter(near[7], 2)
    assert figures.differences({"array": figures.figure(array)}, was, exactly=True) == []
    assert figures.differences({"array": figures.figure(near)}, was, exactly=False) == []
    for other in (near, array[::-1], array.astype(np.float64)):
        assert len(figures.differences({"array": figures.figure(other)}, was, exactly=True)) == 1
    for other in (array[::-1], array * 1.1):
        assert len(figures.differences({"array": figures.figure(other)}, was, exactly=False)) == 1
    assert figures.differences({}, was, exactly=False) == ["array is missing"]
    assert figures.differences(was | {"more": was["array"]}, was, exactly=False) == ["more is new"]
