"""The figures of `headrace bench learner`, and the ratios between them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.common.report import Report, result
from benchmarks.learner.growth import efficiencies
from benchmarks.learner.plan import About
from benchmarks.learner.roofline import bounds, nature_update
from benchmarks.learner.runs import Found
from benchmarks.learner.workloads import WORKLOADS, Setting
from benchmarks.replay.wire import ACTIONS

Key = tuple[str, str]  # the case, and which side was measured
LEARNER, BARE, FED, WATCHED, RUN = "learner", "bare loop", "bare loop, fed", "with profiler", "run"
SINGLE, PEER = "single-file DQN", "stable_baselines3"
UNITS = {
    "updates": "updates/s",
    "items": "items/s",
    "steps": "steps/s",
    "kernels": "kernels/s",
    "CPU": "ms/update",
}  # memory: MB; else percent
VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
PRODUCTS = {"float32": ("TF32", "float32"), "bfloat16": ("bfloat16",), "float16": ("float16",)}  # how they are measured


def unit(metric: str) -> str:
    """Of a figure."""
    return UNITS.get(metric) or ("MB" if "memory" in metric else "%")


def make_report(found: Mapping[Key, list[Found]], precisions: Mapping[str, str], about: About) -> Report:
    """All that was measured. The case of a learner's figures has the setting's name alone."""
    report = Report("learner", gpu=about.name)
    names = {name: kind for name, kind in precisions.items() if kind}
    report.notes += [f"{name}: {kind}" for name, kind in names.items() if kind not in name]
    theirs = []
    for (case, side), runs_of in found.items():
        name = case if side in (LEARNER, RUN) else f"{case}, {side}"
        for metric in dict.fromkeys(metric for one in runs_of for metric in one):
            runs = [float(one[metric]) for one in runs_of if metric in one]
            if side == PEER:
                theirs.append(result(case, metric, unit(metric), runs))
            else:
                report.add(name, metric, unit(metric), runs)
    if theirs:
        report.peer(PEER, "", {}, theirs)
    for case, side in found:
        if side in (BARE, FED, SINGLE, PEER):
            compare(report, case, side, found)
    gains(report, {case: runs_of[0]["updates"] for (case, side), runs_of in found.items() if side == WATCHED})
    scaling(report, {case: runs_of[0] for (case, side), runs_of in found.items() if side == RUN})
    return report


def compare(report: Report, case: str, side: str, found: Mapping[Key, list[Found]]) -> None:
    """The learner's updates per second over another's: the median of each round's ratio where they took turns."""
    ours, theirs = ([one["updates"] for one in found.get((case, name), [])] for name in (LEARNER, side))
    if not ours:
        return
    if side in (BARE, FED):
        each = [one / other for one, other in zip(ours, theirs, strict=False)]
        report.add(case, f"ratio to the {side}", "", each)
        report.ratio(case, "updates", side, statistics.median(each))
    else:
        report.ratio(case, "updates", side, statistics.median(ours) / statistics.median(theirs))


def gains(report: Report, updates: Mapping[str, float]) -> None:
    """What each variant gains over the same without it: compiled, graphs; and each precision over float32."""
    for case, rate in updates.items():
        words = case.split(", ")
        plain = {word: [other for other in words if other != word] for word in ("compiled", "graphs")}
        for kind in ("bfloat16", "float16"):
            plain[kind] = ["float32" if word == kind else word for word in words]
        for word, other in plain.items():
            if word in words and (base := updates.get(", ".join(other))):
                report.ratio(case, "updates", ", ".join(other), rate / base)


def scaling(report: Report, runs: Mapping[str, Found]) -> None:
    """Steps per second and actor over those of the fewest actors."""
    actors = [int(case.split()[0]) for case in runs]
    if not actors:
        return
    for case, value in zip(runs, efficiencies([one["steps"] for one in runs.values()], actors), strict=True):
        report.add(case, "efficiency", "%", [100 * value])


def bound(report: Report, settings: Sequence[Setting], precisions: Mapping[str, str], rates: Mapping[Key, float]) -> None:
    """What the device's measured rates allow an update of the Nature network, beside what the learner reached."""
    reached = {each["case"]: each["value"] for each in report.results if each["metric"] == "updates"}
    for setting in settings:
        kind = precisions.get(setting.name, "")
        if setting.workload != "nature" or kind not in VALUE_BYTES:
            continue
        spec, algorithm = WORKLOADS["nature"].spec(), WORKLOADS["nature"].algorithm
        work = nature_update(setting.batch, spec.stack, spec.n_step, algorithm.hidden, 1 + ACTIONS, VALUE_BYTES[kind])
        flops = [value for (case, metric), value in rates.items() if case.startswith("matrix") and metric in PRODUCTS[kind]]
        host = [value for (_, metric), value in rates.items() if metric.startswith("host to device")]
        most = bounds(work, 1e12 * max(flops), 1e9 * rates["memory", "copy"], 1e9 * max(host, default=math.inf))
        report.notes.append(
            f"{setting.name}: an update takes {work.flops / 1e9:,.1f} GFLOP and moves {work.device_bytes / 1e6:,.0f} MB "
            f"of the device's memory and {work.host_bytes / 1e6:,.1f} MB from the host"
        )
        for what, value in most.items():
            if math.isfinite(value):
                report.add(f"{setting.name}, bound", what, "updates/s", [value])
                if setting.name in reached:
                    report.ratio(setting.name, "updates", f"bound by {what}", reached[setting.name] / value)
