"""Forecasts of the score at the end, against the curves of runs that have ended."""

from __future__ import annotations

import json
from statistics import mean

import pytest

from deploy.children import ROOT
from deploy.reporting.forecast import FURTHEST, LEAST, forecast, forecast_text


def curves() -> list[tuple[list[float], list[float]]]:
    """The times and mean returns of every curve of benchmarks/learning/results with at least a dozen evaluations."""
    found = []
    for path in sorted((ROOT / "benchmarks/learning/results").glob("*/*.json")):
        points = [point for point in json.loads(path.read_bytes()).get("curve", ()) if point["return_mean"] is not None]
        if len(points) >= 12:
            found.append(([point["seconds"] for point in points], [point["return_mean"] for point in points]))
    return found


@pytest.mark.parametrize("share", [0.5, 0.75])
def test_the_range_holds_the_last_evaluation_of_four_in_five_runs_and_is_narrower_than_the_curve(share: float) -> None:
    held, widths, errors = list[bool](), list[float](), list[float]()
    for seconds, scores in curves():
        known = sum(at <= share * seconds[-1] for at in seconds)
        if (found := forecast(seconds[:known], scores[:known], seconds[-1])) is None:
            continue
        span = max(scores) - min(scores) or 1.0
        held.append(found.low <= scores[-1] <= found.high)
        widths.append((found.high - found.low) / span)
        errors.append(abs(found.score - mean(scores[-3:])) / span)
    print(f"from {share:.0%}: {len(held)} curves, {mean(held):.2f} held, width {mean(widths):.2f}, error {mean(errors):.3f}")
    assert len(held) >= 90 and mean(held) >= 0.78 and mean(widths) < 0.35 and mean(errors) < 0.12


def test_a_flat_curve_stays_a_rising_one_may_rise_and_a_falling_one_may_fall() -> None:
    seconds = [float(number) for number in range(1, 41)]
    assert forecast(seconds, [5.0] * 40, 80.0) == (5.0, 5.0, 5.0)
    rising = forecast(seconds, seconds, 80.0)
    falling = forecast(seconds, [-at for at in seconds], 80.0)
    assert rising is not None and rising.low >= 31.0 and rising.high > rising.score + 10.0
    assert falling == (-rising.score, -rising.high, -rising.low)
    assert forecast_text({"figure": "score_mean", "score": 35.2, "low": 31.0, "high": 39.25}) == "score 35.2 (31.0 to 39.2)"


def test_nothing_is_said_by_few_evaluations_or_far_ahead() -> None:
    seconds = [float(number) for number in range(1, LEAST + 1)]
    assert forecast([], [], 100.0) is None
    assert forecast(seconds[1:], seconds[1:], 10.0) is None
    assert forecast(seconds, seconds, FURTHEST * LEAST) is not None
    assert forecast(seconds, seconds, FURTHEST * LEAST + 1.0) is None
