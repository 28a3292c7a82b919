"""Several runs side by side: those of one length that differ only in their seed are one group."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from deploy.recorded.configuration import learned_from
from deploy.recorded.fork_point import ForkPoint
from deploy.recorded.history import steps_at
from deploy.recorded.run import RecordedRun
from deploy.statistics import (
    bootstrap,
    bootstrap_band,
    final_score,
    iqm,
    probability_of_improvement,
    target,
    time_to_score,
)
from deploy.views.web.columns import Document, numbers, rounded

CONSECUTIVE = 3  # evaluations at a score, from which on it counts as reached, as in a suite
FINAL_EVALUATIONS = 5  # whose mean is a run's final score, as in a suite
CURVE_POINTS = 80
LEAST_SEEDS = 3  # of both groups, below which no probability is said
EQUAL_STEPS = 0.8  # runs of one length, where time ends them, differ by less


class Scored(NamedTuple):
    """The evaluations of a run, in their order."""

    name: str
    seed: Any
    settings: dict[str, Any]
    seconds: np.ndarray
    steps: np.ndarray
    returns: np.ndarray
    fork: ForkPoint | None

    def curve(self, x: np.ndarray, begin: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns over steps or seconds; that of a fork branches off at `begin`, where the other run was last evaluated."""
        if self.fork is None or self.fork.return_mean is None:
            return x, self.returns
        return np.append(begin, x), np.append(self.fork.return_mean, self.returns)

    @property
    def task(self) -> dict[str, Any]:
        """The settings of the environment: returns of different ones are not compared."""
        return {key: value for key, value in self.settings.items() if key.startswith("env.")}


def comparison(runs: Sequence[RecordedRun], score: float | None = None) -> Document | None:
    """The groups of each task, or None where there are not two runs with evaluations to compare. `score` is the return that
    counts as reached; without it, that which is nine tenths of the way from the first evaluations to the best group's score."""
    found = [one for one in map(scored, runs) if len(one.returns)]
    if len(found) < 2:
        return None
    tasks: list[list[Scored]] = []
    for one in found:
        same = next((task for task in tasks if task[0].task == one.task), None)
        tasks.append([one]) if same is None else same.append(one)
    return {"tasks": [_task(task, score) for task in tasks], "final_evaluations": FINAL_EVALUATIONS}


def scored(run: RecordedRun) -> Scored:
    settings = run.settings()
    seed = next((one.value for one in settings if one.key == "seed"), None)
    seconds, returns = map(np.array, run.returns)  # every one: whether a score was reached three times in a row shows in no less
    return Scored(run.run.name, seed, learned_from(settings), seconds, steps_at(run.grid, seconds.tolist()), returns, run.fork)


def _task(runs: Sequence[Scored], score: float | None) -> Document:
    groups: list[list[Scored]] = []
    for run in runs:
        same = next((group for group in groups if _belongs(run, group)), None)
        groups.append([run]) if same is None else same.append(run)
    keys = differing([group[0].settings for group in groups])
    finals = [[final_score(run.returns.tolist(), FINAL_EVALUATIONS) for run in group] for group in groups]
    first = float(np.mean([run.returns[0] for run in runs if run.fork is None] or [run.returns[0] for run in runs]))
    wanted = target(first, max(map(iqm, finals))) if score is None else score
    return {
        "env": runs[0].settings.get("env.id"),
        "score": rounded(wanted),
        "given": score is not None,
        "keys": keys,
        "groups": [
            _group(group, final, wanted, [group[0].settings.get(key) for key in keys])
            for group, final in zip(groups, finals, strict=True)
        ],
        "improvement": [
            {"group": one, "over": other, "probability": rounded(probability_of_improvement(finals[one], finals[other]), 3)}
            for one in range(len(groups))
            for other in range(one + 1, len(groups))
            if min(len(finals[one]), len(finals[other])) >= LEAST_SEEDS
        ],
    }


def _belongs(run: Scored, group: Sequence[Scored]) -> bool:
    """True for another seed of a group: the same settings, also before a fork, and about as many steps."""
    steps = [each.steps[-1] for each in (run, *group)]
    new_seed = run.seed not in [each.seed for each in group] and (run.fork is None) == (group[0].fork is None)
    return group[0].settings == run.settings and new_seed and min(steps) >= EQUAL_STEPS * max(steps)


def differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    """The keys in which some of these configurations differ."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if any(each.get(key) != settings[0].get(key) for each in settings)]


def _group(group: Sequence[Scored], final: Sequence[float], wanted: float, values: Sequence[Any]) -> Document:
    seconds = [time_to_score(run.seconds.tolist(), run.returns.tolist(), wanted, CONSECUTIVE) for run in group]
    steps = [time_to_score(run.steps.tolist(), run.returns.tolist(), wanted, CONSECUTIVE) for run in group]
    spread = bootstrap([final])
    return {
        "runs": [run.name for run in group],
        "seeds": [run.seed for run in group],
        "algorithm": group[0].settings.get("algorithm.name"),
        "values": list(values),
        "steps": numbers((run.steps[-1] for run in group), 9),  # at each run's last evaluation: they may be of different lengths
        "final": numbers(final),
        "iqm": rounded(iqm(final)),
        "ci95": None if spread is None else numbers(spread),
        "reached": sum(one is not None for one in seconds),
        "seconds_to_score": _median(seconds),
        "steps_to_score": _median(steps),
        "curves": {
            "steps": _curve([run.curve(run.steps, run.fork.steps if run.fork else 0) for run in group], whole=True),
            "seconds": _curve([run.curve(run.seconds, run.fork.seconds if run.fork else 0) for run in group]),
        },
    }


def _median(found: Sequence[float | None]) -> float | None:
    """The median, with None ("never reached") sorted last."""
    middle = statistics.median(math.inf if one is None else one for one in found)
    return rounded(middle, 7)


def _curve(curves: Sequence[tuple[np.ndarray, np.ndarray]], whole: bool = False) -> Document:
    """The interquartile mean of the runs where all have begun and none has ended, its 95 % interval, and every run's own curve,
    all at the same places. `whole`: places are whole numbers."""
    begin, end = min(x[0] for x, _ in curves), max(x[-1] for x, _ in curves)
    x = np.linspace(begin, max(begin, end), CURVE_POINTS)
    if whole:
        x = np.unique(np.round(x))
    each = np.array([np.interp(x, own, y, left=math.nan, right=math.nan) for own, y in curves])
    common = np.isfinite(each).all(axis=0)
    middle, low, high = (np.full(len(x), math.nan) for _ in range(3))
    if common.any():
        middle[common] = [iqm(values) for values in each[:, common].T]
        if band := bootstrap_band(each[:, common]):
            low[common], high[common] = band
    return {"x": numbers(x, 9), "iqm": numbers(middle), "low": numbers(low), "high": numbers(high)} | {
        "each": [numbers(values) for values in each]
    }
