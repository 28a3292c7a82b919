"""The results of a suite as one HTML page that needs nothing from elsewhere: curves as SVG, and the tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from deploy.provenance import short
from deploy.studies.suite.evidence import metric_of
from deploy.studies.suite.file import Suite, Task
from deploy.studies.suite.summary import (
    Results,
    cells,
    figure,
    heading,
    notes,
    overall_cells,
    overall_notes,
    ratio_line,
    results_of,
)

CURVE_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --faint: #57606a; --line: #d0d7de; --ground: #ffffff;
  --c0: #0969da; --c1: #bc4c00; --c2: #1a7f37; --c3: #8250df; --c4: #9a6700; --c5: #bf3989; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --faint: #9da7b3; --line: #3d444d; --ground: #0d1117;
    --c0: #58a6ff; --c1: #f0883e; --c2: #3fb950; --c3: #bc8cff; --c4: #d29922; --c5: #f778ba; }
}
svg text { fill: var(--faint); font: 12px system-ui, sans-serif; }
svg .axis { stroke: var(--line); fill: none; }
svg .target { stroke: var(--faint); stroke-dasharray: 4 4; }
svg polyline { fill: none; stroke-linejoin: round; }
svg .seed { stroke-width: 1; opacity: 0.35; }
svg .mean { stroke-width: 2.25; }
"""
STYLE = f"""{CURVE_STYLE}
body {{ margin: 2rem auto; max-width: 75rem; padding: 0 1rem; background: var(--ground); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; }}
h2 {{ font-size: 1.2rem; margin-top: 2.5rem; }}
.curves {{ display: flex; flex-wrap: wrap; gap: 1rem; }}
.curves > svg {{ flex: 1 1 28rem; max-width: 36rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.35rem 0.75rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }}
th:first-child {{ text-align: left; }}
tbody th {{ font-weight: 500; }}
thead th, .faint {{ color: var(--faint); }}
"""
COLOURS = 6
WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 40
MEAN_POINTS = 120
MOST_TICKS = 6
ROUNDING = 1e-9  # of a step
BELOW_RANDOM = 0.15  # of the height above random that is shown below it
AXES = {"seconds": "seconds since the start of the process", "steps": "environment steps"}


class Frame(NamedTuple):
    """The ranges of a plot."""

    right: float  # of x, which begins at 0
    low: float
    high: float

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self.right

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - self.low) / (self.high - self.low)


class Curve(NamedTuple):
    """The curve of one seed: x [N], y [N], in the order of time; only finite values."""

    x: np.ndarray
    y: np.ndarray


def page(suite: Suite, results: Results, summary: Mapping[str, Any]) -> str:
    """The whole document."""
    title = escape(suite.about or f"Suite {suite.name}")
    runs = summary["runs"]
    body = [
        f"<h1>{title}</h1>",
        f"<p>{runs['finished']} of {runs['all']} runs. Every policy plays the same episodes, greedily, when training is over; "
        "time counts from the start of the process. Thin lines are single seeds, thick ones their mean.</p>",
        f'<p class="faint">{escape(provenance(results))}</p>',
        _legend(suite),
    ]
    for task, figures in zip(suite.tasks, summary["tasks"], strict=True):
        body += [f"<h2>{escape(heading(figures))}</h2>", _curves(suite, results, task, figures), _source(task)]
        heads = ("", f"final {task.metric}", "95 % interval", "time to score", "reached", "steps")
        body.append(_table(heads, [cells(one) for one in figures["contestants"]]))
        body += [f"<p>{escape(note)}</p>" for note in notes(figures)]
    overall = [overall_cells(one) for one in summary["contestants"] if one["tasks"]]
    if overall:
        body += ["<h2>All tasks, 0 random, 1 reference</h2>", _table(("", "score", "95 % interval", "tasks"), overall)]
        body += [f"<p>{escape(note)}</p>" for note in overall_notes(summary)]
    body += [f"<p>{escape(ratio_line(ratio))}</p>" for ratio in summary["ratios"] if ratio["by_task"]]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def picture(suite: Suite, results: Results, task: Task, figures: Mapping[str, Any]) -> str:
    """The curves of a task by time as an SVG file, which needs no page; empty where there are none."""
    drawn = _plot(suite, results, task, figures, "seconds")
    named = [(number, one.name) for number, one in enumerate(suite.contestants) if results_of(suite, results, task, one)]
    legend = [
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - BOTTOM - 10 - 16 * row}" text-anchor="end" '
        f'style="fill: var(--c{number % COLOURS}); font-weight: 600">{escape(name)}</text>'
        for row, (number, name) in enumerate(reversed(named))
    ]
    first, *middle, last = drawn.splitlines() or ("", "")
    head = first.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return "\n".join([head, f"<style>{CURVE_STYLE}</style>", *middle, *legend, last, ""]) if drawn else ""


def provenance(results: Results) -> str:
    """The machines and the commits that the results come from."""
    machines = {_machine(result["machine"]) for result in results.values() if result.get("machine")}
    commits = {short(result["commit"]) for result in results.values() if result.get("commit")}
    return "; ".join(sorted(machines)) + (f"; commit {', '.join(sorted(commits))}" if commits else "")


def _machine(found: Mapping[str, Any]) -> str:
    return f"{found['cores']} cores of {found['cpu']}, {found['memory_gb']:g} GB, {found['system']}"


def _legend(suite: Suite) -> str:
    named = (
        f'<span style="color: var(--c{number % COLOURS})">&#9632; {escape(contestant.name)}</span>'
        for number, contestant in enumerate(suite.contestants)
    )
    return f"<p>{' &nbsp; '.join(named)}</p>"


def _source(task: Task) -> str:
    return f'<p class="faint">reference: {escape(task.source)}</p>' if task.source else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>\n"
        for row in rows
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>'


def _curves(suite: Suite, results: Results, task: Task, figures: Mapping[str, Any]) -> str:
    return '<div class="curves">\n' + "".join(_plot(suite, results, task, figures, axis) for axis in AXES) + "</div>"


def _plot(suite: Suite, results: Results, task: Task, figures: Mapping[str, Any], axis: str) -> str:
    """One plot: a thin line for each seed, a thick one for the mean of a contestant's."""
    curves = [
        [curve for result in results_of(suite, results, task, contestant) if len((curve := _curve(result, task, axis)).x)]
        for contestant in suite.contestants
    ]
    every = [curve for found in curves for curve in found]
    if not every:
        return ""
    marks = [value for value in (figures["target"], task.random) if value is not None]
    low = min(*(float(curve.y.min()) for curve in every), *marks, math.inf)
    high = max(*(float(curve.y.max()) for curve in every), *marks, -math.inf)
    if task.random is not None:  # a policy can be far worse than random: that end of a curve is cut off
        low = max(low, task.random - BELOW_RANDOM * (high - task.random))
    frame = Frame(max(float(curve.x.max()) for curve in every) or 1.0, low, high if high > low else low + 1)
    box = f"{LEFT} {TOP} {WIDTH - LEFT - RIGHT} {HEIGHT - TOP - BOTTOM}"
    x, y, width, height = box.split()  # of an inner picture, which cuts off what lies outside
    lines = [_axes(frame, AXES[axis], task.metric), f'<svg x="{x}" y="{y}" width="{width}" height="{height}" viewBox="{box}">']
    if figures["target"] is not None:
        goal = frame.y(figures["target"])
        lines.append(f'<line class="target" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{goal:.1f}" y2="{goal:.1f}"/>')
    for number, found in enumerate(curves):
        colour = f"var(--c{number % COLOURS})"
        lines += [_line(frame, curve, "seed", colour) for curve in found]
        lines += [_line(frame, _mean(found), "mean", colour)] if found else []
    lines.append("</svg>")
    label = escape(f"{task.name}: {task.metric} by {AXES[axis]}", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">\n' + "\n".join(lines) + "\n</svg>\n"


def _curve(result: Mapping[str, Any], task: Task, axis: str) -> Curve:
    x, y = np.array([point[axis] for point in result["curve"]], float), np.array(metric_of(result, task.metric), float)
    kept = np.isfinite(y)
    return Curve(x[kept], y[kept])


def _mean(curves: Sequence[Curve]) -> Curve:
    """The mean of the seeds, where all have begun and none has ended."""
    begin, end = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    x = np.linspace(begin, max(begin, end), MEAN_POINTS)
    return Curve(x, np.mean([np.interp(x, curve.x, curve.y) for curve in curves], axis=0))


def _line(frame: Frame, curve: Curve, kind: str, colour: str) -> str:
    points = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(curve.x, curve.y, strict=True))
    return f'<polyline class="{kind}" style="stroke: {colour}" points="{points}"/>'


def _axes(frame: Frame, below: str, beside: str) -> str:
    bottom = HEIGHT - BOTTOM
    parts = [f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}"/>']
    for value in ticks(0.0, frame.right):
        parts.append(f'<text x="{frame.x(value):.1f}" y="{bottom + 16}" text-anchor="middle">{_tick(value)}</text>')
    for value in ticks(frame.low, frame.high):
        parts.append(f'<text x="{LEFT - 6}" y="{frame.y(value) + 4:.1f}" text-anchor="end">{_tick(value)}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(below)}</text>')
    parts.append(f'<text x="{LEFT + 6}" y="{TOP + 10}">{escape(beside)}</text>')
    return "\n".join(parts)


def ticks(low: float, high: float) -> list[float]:
    """At most MOST_TICKS multiples of 1, 2 or 5 times a power of ten, from low to high."""
    finest = (high - low) / (MOST_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(finest))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= finest)
    return [number * step for number in range(math.ceil(low / step - ROUNDING), math.floor(high / step + ROUNDING) + 1)]


def _tick(value: float) -> str:
    return f"{value / 1e6:.3g}M" if abs(value) >= 1e6 else figure(value)
