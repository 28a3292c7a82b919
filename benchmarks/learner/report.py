"""The figures of `headrace bench learner`, and the ratios between them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from benchmarks.common.report import Report
from benchmarks.learner.plan import About
from benchmarks.learner.runs import Found

Key = tuple[str, str]  # the case, and which side was measured
LEARNER, BARE, VARIANT = "learner", "bare loop", "variant"
UNITS = {
    "updates": "updates/s",
    "items": "items/s",
    "CPU": "ms/update",
}  # memory: MB; else percent


def unit(metric: str) -> str:
    """The unit of a figure."""
    return UNITS.get(metric) or ("MB" if "memory" in metric else "%")


def make_report(found: Mapping[Key, list[Found]], precisions: Mapping[str, str], about: About) -> Report:
    """All that was measured. The case of a learner's figures has the setting's name alone."""
    report = Report("learner", gpu=about.name)
    names = {name: kind for name, kind in precisions.items() if kind}
    report.notes += [f"{name}: {kind}" for name, kind in names.items() if kind not in name]
    for (case, side), runs_of in found.items():
        name = case if side == LEARNER else f"{case}, {side}"
        for metric in dict.fromkeys(metric for one in runs_of for metric in one):
            runs = [float(one[metric]) for one in runs_of if metric in one]
            report.add(name, metric, unit(metric), runs)
    for case, side in found:
        if side == BARE:
            compare(report, case, found)
    gains(report, {case: runs_of[0]["updates"] for (case, side), runs_of in found.items() if side == VARIANT})
    return report


def compare(report: Report, case: str, found: Mapping[Key, list[Found]]) -> None:
    """The learner's updates per second over the bare loop's, which took turns with it: the median of each round's ratio."""
    ours, theirs = ([one["updates"] for one in found.get((case, name), [])] for name in (LEARNER, BARE))
    if each := [one / other for one, other in zip(ours, theirs, strict=False)]:
        report.add(case, f"ratio to the {BARE}", "", each)
        report.ratio(case, "updates", BARE, statistics.median(each))


def gains(report: Report, updates: Mapping[str, float]) -> None:
    """Adds the gain of each variant over the same without it: compiled, graphs; and each precision over float32."""
    for case, rate in updates.items():
        words = case.split(", ")
        plain = {word: [other for other in words if other != word] for word in ("compiled", "graphs")}
        for kind in ("bfloat16", "float16"):
            plain[kind] = ["float32" if word == kind else word for word in words]
        for word, other in plain.items():
            if word in words and (base := updates.get(", ".join(other))):
                report.ratio(case, "updates", ", ".join(other), rate / base)
