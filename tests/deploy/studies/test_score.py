"""The time to a score: that of the first of several consecutive evaluations."""

import math

import pytest

from deploy.statistics import time_to_score

NAN = math.nan


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0, 9, 9, 9], 20.0),  # the first of the three
        ([9, 9, 0, 9, 9], None),  # two, and two again
        ([9, 9, 0, 9, 9, 9], 40.0),
        ([0, 0, 0, 9, 9], None),  # training ended after two
        ([5, 5, 5], 10.0),  # at the threshold
        ([9, 9, NAN, 9, 9, 9], 40.0),  # what is not known is not above
        ([], None),
    ],
)
def test_the_time_is_that_of_the_first_of_three_consecutive_evaluations(scores: list[float], expected: float | None) -> None:
    assert time_to_score([10.0 * (k + 1) for k in range(len(scores))], scores, 5, consecutive=3) == expected
