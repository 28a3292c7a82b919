"""The summary of a suite's results: scores, times to a score, ratios; as a document and as a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from deploy import statistics as figures
from deploy.statistics import time_to_score
from deploy.studies.suite.evidence import metric_of
from deploy.studies.suite.file import Contestant, Suite, SuiteRun, Task, order
from transport.text import listed

CONSECUTIVE = 3  # evaluations at the target or above, so that it counts as reached
UNEVEN = 1.15  # ratio of the core speeds of two runs from which the report has a note
Result = Mapping[str, Any]
Results = Mapping[str, Result]  # by the run's name


def summarise(suite: Suite, results: Results) -> dict[str, Any]:
    """The document of `headrace suite --json`.

    tasks: for each contestant the `final` scores of its seeds (the mean of the last evaluations), their interquartile mean with
    its 95 % interval, and the `seconds_to_score` of each seed (None: not reached), with their median. `core_speeds`: of the
    slowest run and of the fastest, as `evidence.core_speed` has it (None: no run has measured it).
    contestants: the interquartile mean over all tasks and seeds of (score - random) / (reference - random), and the tasks that it
    cuts off: all of their seeds are among the lowest or highest quarter.
    ratios: median time of the first contestant over that of another, task by task, and the geometric mean. Where one of the two
    did not reach the score its time counts as the duration of its longest run, and `bound` says which way the ratio errs; where
    neither did, there is no ratio.
    """
    tasks = [_task(suite, task, results) for task in suite.tasks]
    first, *others = suite.contestants
    return {
        "suite": suite.name,
        "about": suite.about,
        "final_evaluations": suite.final_evaluations,
        "runs": {"finished": len(results), "all": sum(1 for _ in order(suite))},
        "tasks": tasks,
        "contestants": [_overall(contestant, tasks) for contestant in suite.contestants],
        "ratios": [_ratios(first, other, tasks) for other in others],
    }


def results_of(suite: Suite, results: Results, task: Task, contestant: Contestant) -> list[Result]:
    """The results of a contestant on a task that are there, in the order of the seeds."""
    names = [SuiteRun(suite.name, task, contestant, seed).name for seed in suite.seeds]
    return [results[name] for name in names if name in results]


def _task(suite: Suite, task: Task, results: Results) -> dict[str, Any]:
    known = task.random is not None and task.reference is not None
    target = figures.target(task.random, task.reference) if known else None  # type: ignore[arg-type]
    return {
        "task": task.name,
        "env": task.env["id"],
        "metric": task.metric,
        "random": task.random,
        "reference": task.reference,
        "source": task.source,
        "target": target,
        "limit_seconds": task.seconds,
        "core_speeds": _core_speeds([each for one in suite.contestants for each in results_of(suite, results, task, one)]),
        "contestants": [
            {"contestant": contestant.name, **_figures(results_of(suite, results, task, contestant), task, target, suite)}
            for contestant in suite.contestants
        ],
    }


def _figures(found: Sequence[Result], task: Task, target: float | None, suite: Suite) -> dict[str, Any]:
    curves = [(metric_of(result, task.metric), [point["seconds"] for point in result["curve"]]) for result in found]
    final = [figures.final_score(scores, suite.final_evaluations) for scores, _ in curves]
    usable = [score for score in final if math.isfinite(score)]
    times: list[float | None] = []
    if target is not None:
        times = [time_to_score(seconds, scores, target, CONSECUTIVE) for scores, seconds in curves]
    return {
        "seeds": [result["seed"] for result in found],
        "final": final,
        "iqm": figures.iqm(usable),
        "ci95": figures.bootstrap([usable]),
        "seconds_to_score": times,
        "median_seconds": _median(times),
        "steps": [result["training"]["steps"] for result in found],
        "longest_seconds": min(max((result["training"]["seconds"] for result in found), default=0.0), task.seconds),
    }


def _core_speeds(found: Sequence[Result]) -> list[float] | None:
    """A run's speed is the mean of those before and after its training; files of earlier versions have none."""
    speeds = [statistics.mean(speed) for result in found if (speed := result.get("machine", {}).get("core_speed"))]
    return [round(min(speeds), 1), round(max(speeds), 1)] if speeds else None


def _median(times: Sequence[float | None]) -> float | None:
    """The median, with None ("not reached") later than any other; None if the median is."""
    if not times:
        return None
    middle = statistics.median(math.inf if time is None else time for time in times)
    return middle if math.isfinite(middle) else None


def _overall(contestant: Contestant, tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    strata: dict[str, list[float]] = {}
    for task in tasks:
        if task["target"] is None:
            continue
        (own,) = (one for one in task["contestants"] if one["contestant"] == contestant.name)
        span = task["reference"] - task["random"]
        if scores := [(score - task["random"]) / span for score in own["final"] if math.isfinite(score)]:
            strata[task["task"]] = scores
    return {
        "contestant": contestant.name,
        "tasks": len(strata),
        "normalised_iqm": figures.iqm([score for scores in strata.values() for score in scores]),
        "ci95": figures.bootstrap([*strata.values()]),
        "cut_off": figures.cut_off(strata),
    }


def _ratios(first: Contestant, other: Contestant, tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for task in tasks:
        tried = {one["contestant"]: one for one in task["contestants"] if one["seconds_to_score"]}
        if first.name not in tried or other.name not in tried:
            continue
        ours, theirs = (tried[name]["median_seconds"] for name in (first.name, other.name))
        if ours is None and theirs is None:
            continue
        bound = "at least" if ours is None else "at most" if theirs is None else ""
        over, under = (tried[name]["median_seconds"] or tried[name]["longest_seconds"] for name in (first.name, other.name))
        found[task["task"]] = {"ratio": over / under, "bound": bound}
    return {
        "contestant": first.name,
        "beside": other.name,
        "by_task": found,
        "geometric_mean": figures.geometric_mean([one["ratio"] for one in found.values()]),
    }


def lines(summary: Mapping[str, Any]) -> list[str]:
    """The summary for people."""
    runs = summary["runs"]
    found = [f"{summary['suite']}: {runs['finished']} of {runs['all']} runs are finished"]
    for task in summary["tasks"]:
        found += ["", heading(task)]
        rows: list[Sequence[str]] = [("", f"final {task['metric']}", "95 % interval", "time to score", "reached", "steps")]
        rows += [cells(one) for one in task["contestants"]]
        found += table(rows)
        found += [f"  {note}" for note in notes(task)]
    overall = [one for one in summary["contestants"] if one["tasks"]]
    if overall:
        found += ["", "all tasks, 0 random, 1 reference"]
        found += table([("", "score", "95 % interval", "tasks"), *(overall_cells(one) for one in overall)])
        found += [f"  {note}" for note in overall_notes(summary)]
    for ratio in summary["ratios"]:
        if ratio["by_task"]:
            found += ["", ratio_line(ratio)]
    return found


def heading(task: Mapping[str, Any]) -> str:
    text = f"{task['task']}, {figure(task['limit_seconds'] / 60)} min"
    if task["target"] is not None:
        text += f": random {figure(task['random'])}, reference {figure(task['reference'])}, to reach {figure(task['target'])}"
    return text


def cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    """A contestant's row of a task."""
    times = one["seconds_to_score"]
    reached = f"{sum(time is not None for time in times)} of {len(times)}" if times else "-"
    median = "-" if one["median_seconds"] is None else f"{one['median_seconds']:,.0f} s"
    steps = f"{statistics.median(one['steps']):,.0f}" if one["steps"] else "-"
    return one["contestant"], figure(one["iqm"]), interval(one["ci95"]), median, reached, steps


def notes(task: Mapping[str, Any]) -> list[str]:
    """Notes for a reader of a task's figures."""
    slowest, fastest = task["core_speeds"] or (1.0, 1.0)
    if fastest < UNEVEN * slowest:
        return []
    share = f"{fastest / slowest - 1:.0%}".replace("%", " %")
    return [f"Note: the cores were {share} faster in one of these runs than in another; times to a score differ by that, too."]


def overall_cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    return one["contestant"], figure(one["normalised_iqm"]), interval(one["ci95"]), str(one["tasks"])


def overall_notes(summary: Mapping[str, Any]) -> list[str]:
    """Which tasks have no part in the score of a contestant over all tasks."""
    quarters = "The interquartile mean leaves out the lowest and the highest quarter"
    return [
        f"{quarters}: for {one['contestant']} all of {listed(one['cut_off'])}."
        for one in summary["contestants"]
        if one["cut_off"]
    ]


def ratio_line(ratio: Mapping[str, Any]) -> str:
    """Time of one contestant over that of another."""
    shown = [" ".join(filter(None, (name, one["bound"], figure(one["ratio"])))) for name, one in ratio["by_task"].items()]
    mean = figure(ratio["geometric_mean"])
    return f"Time to score of {ratio['contestant']} over that of {ratio['beside']}: geometric mean {mean} ({', '.join(shown)})"


def interval(found: Sequence[float] | None) -> str:
    return "-" if found is None else f"{figure(found[0])} to {figure(found[1])}"


def figure(value: float | None) -> str:
    """Four digits; "-" for no number."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
