"""The arithmetic of a comparison, against small computations by other means."""

import itertools
import math

import numpy as np
import pytest

from deploy.statistics import bootstrap, final_score, geometric_mean, iqm, target


def test_the_target_is_nine_tenths_of_the_way() -> None:
    assert target(0, 500) == 450
    assert target(-1000, -100) == pytest.approx(-190)


def test_the_final_score_is_the_mean_of_the_last_evaluations() -> None:
    assert final_score([0, 0, 1, 2, 3], 3) == 2
    assert final_score([4], 3) == 4 and math.isnan(final_score([], 3))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 30], 11.0),  # too few to leave any out
        ([100, 1, 2, -100], 1.5),
        ([1, 2, 3, 4, 5, 6, 7, 80], 4.5),
        ([5], 5.0),
    ],
)
def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end(values: list[float], expected: float) -> None:
    assert iqm(values) == expected


def test_the_interquartile_mean_of_nothing_is_not_a_number() -> None:
    assert math.isnan(iqm([]))


def test_the_bootstrap_agrees_with_all_possible_resamples() -> None:
    """Of three values there are 27 resamples, all equally likely."""
    values = [1.0, 4.0, 10.0]
    means = [np.mean(drawn) for drawn in itertools.product(values, repeat=3)]
    low, high = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    found = bootstrap([values])
    assert found is not None
    assert found.low == pytest.approx(low) and found.high == pytest.approx(high)


def test_the_bootstrap_of_many_values_agrees_with_the_normal_approximation() -> None:
    """The interquartile mean of n normal values has a standard error of about 1.2 / sqrt(n), found by simulation."""
    random = np.random.default_rng(1)
    values = random.normal(size=400)
    error = np.std([iqm(random.normal(size=400)) for _ in range(2000)])
    found = bootstrap([values.tolist()])
    assert found is not None
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.2)


def test_the_bootstrap_draws_each_task_from_its_own_seeds() -> None:
    """Strata without spread have no interval; were all values one stratum, resamples would differ."""
    found = bootstrap([[0.0, 0.0], [1.0, 1.0]])
    assert found == (0.5, 0.5)


def test_one_seed_has_no_interval() -> None:
    assert bootstrap([[1.0]]) is None and bootstrap([]) is None and bootstrap([[1.0, 2.0], [1.0]]) is None


def test_the_bootstrap_is_the_same_each_time() -> None:
    assert bootstrap([[1.0, 2.0, 5.0, 9.0]]) == bootstrap([[1.0, 2.0, 5.0, 9.0]])


def test_the_geometric_mean() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([0.25, 1.0]) == pytest.approx(0.5)
    assert math.isnan(geometric_mean([]))
