"""The arithmetic of a comparison, against small computations by other means."""

import itertools
import math

import numpy as np
import pytest

from deploy.statistics import bootstrap, final_score, geometric_mean, iqm, target, time_to_score

NAN = math.nan


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (target(0, 500), 450),
        (target(-1000, -100), -190),
        (final_score([0, 0, 1, 2, 3], 3), 2),
        (final_score([4], 3), 4),
        (final_score([], 3), NAN),
        (iqm([1, 2, 30]), 11),  # too few to leave any out
        (iqm([100, 1, 2, -100]), 1.5),
        (iqm([1, 2, 3, 4, 5, 6, 7, 80]), 4.5),
        (iqm([]), NAN),
        (geometric_mean([0.25, 1.0]), 0.5),
        (geometric_mean([]), NAN),
    ],
)
def test_scores_are_summed_up(found: float, expected: float) -> None:
    assert found == pytest.approx(expected, nan_ok=True)


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
def test_the_time_to_a_score_is_that_of_the_first_of_three_evaluations_in_a_row(
    scores: list[float], expected: float | None
) -> None:
    assert time_to_score([10.0 * (k + 1) for k in range(len(scores))], scores, 5, consecutive=3) == expected


def test_the_bootstrap_agrees_with_all_possible_resamples() -> None:
    """Three values have 27 resamples, all equally likely."""
    values = [1.0, 4.0, 10.0]
    means = [np.mean(drawn) for drawn in itertools.product(values, repeat=3)]
    found = bootstrap([values])
    assert found == pytest.approx(tuple(np.quantile(means, [0.025, 0.975], method="inverted_cdf")))
    assert found == bootstrap([values]), "the same each time"


def test_the_bootstrap_draws_each_task_from_its_own_seeds_and_needs_two_of_each() -> None:
    """Strata without spread have no interval; were all values one stratum, resamples would differ."""
    assert bootstrap([[0.0, 0.0], [1.0, 1.0]]) == (0.5, 0.5)
    assert bootstrap([[1.0]]) is None and bootstrap([]) is None and bootstrap([[1.0, 2.0], [1.0]]) is None
