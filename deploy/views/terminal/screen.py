"""Draws a run as lines of text, for any size of terminal. Nothing here knows a real terminal or a clock."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.text import Text

from actors.figures import evaluation_line
from deploy.reporting.events import OVER, RunEvent
from deploy.reporting.forecast import forecast_text
from transport.text import amount, duration, moment_text, plain

LABEL = 8  # characters before the rows of returns and evaluation
MOST_TROUBLES, LEAST_ROWS = 4, 3
SPARKS, ASCII_SPARKS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
ASCII = str.maketrans(
    {"·": "-", "–": "-", "—": "-", "…": "~", "×": "x", "─": "-", "▶": ">", "✕": "X", "│": "|", "▼": "v", "±": "+"}
)
ROOM = 2  # between columns
STATES = {"ready": "green", "running": "green", "remote": "green", "stopped": "dim"}  # the others are shown in yellow, or red
BAD = ("failed", "dead", "silent", "unsupervised")


UP = ("starting", "running", "paused", "stopping")
NO_TROUBLE = ("started", "running", "stopped")  # kinds of events


class RunView(NamedTuple):
    """A run at one time. `returns`: the mean return of the actors' episodes over the whole run, NaN where none ended. `now`:
    seconds since 1970."""

    status: Mapping[str, Any]
    returns: Sequence[float]
    events: Sequence[RunEvent]
    now: float

    @property
    def up(self) -> bool:
        return self.status["state"] in UP

    @property
    def troubles(self) -> list[RunEvent]:
        """The newest first."""
        return [event for event in reversed(self.events) if event.kind not in NO_TROUBLE]


class Form(NamedTuple):
    """How to draw. `height` 0: as many lines as there are. Without `unicode` every line is ASCII."""

    width: int
    height: int = 0
    unicode: bool = True


def draw(shown: RunView, form: Form) -> list[Text]:
    """The lines of the screen, none wider than `form.width` and not more than `form.height`."""
    blank = [Text()]
    flow = *flow_lines(shown, form), *(Text(line, "dim") for line in inference_lines(shown.status))
    found = [*head(shown), *limit(shown, form), *blank, *flow, *blank, *curves(shown, form)]
    found += [*host_lines(shown.status.get("hosts", [])), *blank]
    troubles = trouble_lines(shown)
    if form.height and form.height < len(found) + len(troubles) + 2 + LEAST_ROWS:
        found = [line for line in found if line.plain]  # a low terminal has no blank lines
        troubles = troubles[:2]
    found += troubles
    left = form.height - len(found) - 1 if form.height else len(shown.status["processes"])
    found += process_lines(shown.status["processes"], max(left, 1), form.width)
    lines = [fitted(line, form) for line in found]
    return lines[: form.height] if form.height else lines


def head(shown: RunView) -> list[Text]:
    status = shown.status
    steps, total = status.get("steps"), status.get("total_steps")
    done = "" if steps is None else f" · {steps:,} steps" if not total else f" · {steps:,} of {total:,} steps"
    state = status["state"]
    line = Text.assemble((plain(status["run"]), "bold"), " ", (state, style_of(state)), since(status, shown.now))
    line.append(plain(f" · {status['env']} · {status['algorithm']}{done}"))
    reason = status.get("reason")
    return [line, Text(plain(reason), "red" if state in BAD else "dim")] if reason else [line]


def limit(shown: RunView, form: Form) -> list[Text]:
    """The bottleneck and the advice about it; at most two lines each."""
    sentence = shown.status.get("bottleneck")
    if not sentence or not shown.up:
        return []
    limits, _, advice = plain(sentence).partition(" · ")
    rows = [("limit", limits, "yellow"), *([("next", advice, "cyan")] if advice else [])]
    lines = []
    for label, text, style in rows:
        wrapped = textwrap.wrap(text, max(form.width - LABEL, 12), max_lines=2, placeholder=" …")
        for number, part in enumerate(wrapped):
            lines.append(Text.assemble((("" if number else label).ljust(LABEL), "dim"), (part, style)))
    return lines


def flow_lines(shown: RunView, form: Form) -> list[Text]:
    """The way of experience through the run: in one line where it fits, otherwise from top to bottom. Rates are those of now."""
    flow = shown.status["flow"]
    rates = flow if shown.up else {}
    nodes = [
        ("actors", f"{flow['actors']}"),
        ("replay", cell(flow["fill"], "{:.0%}", "")),
        ("learner", rate_text(rates.get("updates_per_second"), " updates/s")),
    ]
    edges = [
        ("experience", rate_text(rates.get("steps_per_second"), " steps/s")),
        ("batches", rate_text(rates.get("items_per_second"), " items/s")),
    ]
    blocked = flow["blocked"]
    side, share = ("actors wait", "actors_wait") if blocked == "experience" else ("learner waits", "learner_waits")
    why = f"{side} {flow[share] or 0.0:.0%} of the time" if blocked else ""
    line = Text()
    for number, (name, value) in enumerate(nodes):
        line.append(name, "bold").append(f" {value}".rstrip())
        if number < len(edges):
            line.append_text(arrow(edges[number][1], edges[number][0] == blocked))
    if line.cell_len > form.width:
        return upright(nodes, edges, blocked, why)
    lines = [line, *([Text(f"blocked: {why}", "red")] if blocked else [])]
    if flow["policy_version"] is not None:
        behind = cell(flow["lag"], ", actors are {:.1f} versions behind", "")
        lines.append(Text(f"weights v{flow['policy_version']:.0f}{behind}", "dim"))
    return lines


def arrow(value: str, blocked: bool) -> Text:
    return Text(f" ─{value or '─'}{'✕' if blocked else '─'}▶ ", "red" if blocked else "dim" if not value else "")


def upright(nodes: Sequence[tuple[str, str]], edges: Sequence[tuple[str, str]], blocked: str, why: str) -> list[Text]:
    lines = []
    for number, (name, value) in enumerate(nodes):
        lines.append(Text.assemble((name.ljust(LABEL), "bold"), value))
        if number < len(edges):
            edge, rate = edges[number]
            stopped = blocked == edge
            note = f"  blocked: {why}" if stopped else ""
            lines.append(Text(f"  {'✕' if stopped else '▼'} {rate}{note}", "red" if stopped else "dim"))
    return lines


def curves(shown: RunView, form: Form) -> list[Text]:
    """The return over the run as a sparkline, and the newest evaluation."""
    lines = []
    known = [value for value in shown.returns if math.isfinite(value)]
    if known:
        text = f" {amount(known[-1])}"
        room = max(min(form.width - LABEL - len(text), 60), 1)
        curve = sparkline(shown.returns, room, SPARKS if form.unicode else ASCII_SPARKS)
        lines.append(Text.assemble(("return".ljust(LABEL), "dim"), (curve, "cyan"), text))
    found = shown.status.get("evaluation") or {}
    if found.get("return_mean") is not None:
        parts = [f"v{found['policy_version']}", evaluation_line(found)]
        if found.get("best_version") is not None:
            parts.append(f"best v{found['best_version']}")
        lines.append(Text.assemble(("eval".ljust(LABEL), "dim"), " · ".join(parts)))
    lines += [Text(line, "dim") for line in end_lines(shown.status, shown.now)]
    return lines or [Text("no episode has ended yet", "dim")]


def end_lines(status: Mapping[str, Any], now: float) -> list[str]:
    """When the run ends, and the score that is to be expected then; `now` in seconds since 1970."""
    ends_at, expected = status.get("ends_at"), status.get("forecast")
    if ends_at is None:
        return []
    score = f" · forecast {forecast_text(expected)}" if expected else ""
    return [f"{'ends':<{LABEL}}{moment_text(ends_at, now)}, in {duration(max(ends_at - now, 0.0))}{score}"]


def host_lines(hosts: Sequence[dict[str, Any]]) -> list[Text]:
    """How many hosts are in which state, in one line."""
    if not hosts:
        return []
    states = ", ".join(f"{number} {state}" for state, number in Counter(host["state"] for host in hosts).items())
    actors, places = (sum(host[name] for host in hosts) for name in ("actors", "places"))
    return [Text.assemble(("hosts".ljust(LABEL), "dim"), f"{states} · {actors} of {places} places")]


def sparkline(values: Sequence[float], width: int, levels: str) -> str:
    """Means of equal shares of `values`, at most `width` of them, between the lowest and the highest; blank where all are NaN."""
    width = min(width, len(values))
    shares = [values[k * len(values) // width : (k + 1) * len(values) // width] for k in range(width)]
    finite = [[value for value in share if math.isfinite(value)] for share in shares]
    means = [sum(share) / len(share) if share else None for share in finite]
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    scale = (len(levels) - 1) / (high - low) if high > low else 0.0
    middle = 0 if high > low else len(levels) // 2
    return "".join(" " if mean is None else levels[middle + round((mean - low) * scale)] for mean in means)


def trouble_lines(shown: RunView) -> list[Text]:
    """The newest troubles, with their age."""
    troubles = shown.troubles
    if not troubles:
        return [Text("no trouble so far", "dim")]
    lines = [Text("trouble", "bold")]
    for event in troubles[:MOST_TROUBLES]:
        ago = duration(max(shown.now - event.time, 0.0))
        lines.append(Text.assemble((f"{ago} ago".rjust(LABEL + 5), "dim"), "  ", (plain(event.process), "bold"), " "))
        lines[-1].append(plain(f"{event.kind.replace('_', ' ')}: {event.text}"), "red")
    return lines


def process_lines(processes: Sequence[Mapping[str, Any]], rows: int, width: int, pids: bool = False) -> list[Text]:
    """A table of at most `rows` processes, those with trouble first, and a line about the others."""
    ordered = sorted(processes, key=lambda process: process["state"] in STATES)
    kept = ordered if len(ordered) <= rows else ordered[: max(rows - 1, 1)]
    columns = [
        TableColumn("process", [plain(one["name"]) for one in kept], False),
        TableColumn("state", [state_of(one) for one in kept], False),
        TableColumn("steps/s", [cell(one["steps_per_second"], "{:,.0f}") for one in kept]),
        TableColumn("restarts", [cell(one["restarts"], "{}") for one in kept]),
        TableColumn("memory", [cell(one["rss_bytes"] and one["rss_bytes"] / 2**20, "{:,.0f} MB") for one in kept]),
        TableColumn("cpu", [cell(one["cpu_percent"], "{:.0f}%") for one in kept]),
    ]
    if pids:
        columns.insert(2, TableColumn("pid", [cell(one["pid"], "{}") for one in kept]))
    if any(one.get("host") for one in kept):
        columns.insert(2, TableColumn("host", [plain(one.get("host") or "") for one in kept], False))
    if any(one.get("last_exit") for one in kept):
        columns.append(TableColumn("last exit", [plain(one.get("last_exit") or "") for one in kept], False))
    while len(columns) > 2 and sum(column.width + ROOM for column in columns) - ROOM > width:
        columns.pop()
    lines = [Text((" " * ROOM).join(column.cell(column.heading) for column in columns), "dim")]
    for number, process in enumerate(kept):
        cells = [column.cell(column.cells[number]) for column in columns]
        line = Text((" " * ROOM).join(cells).rstrip())
        start = len(cells[0]) + ROOM
        line.stylize(style_of(process["state"]), start, start + len(cells[1]))
        lines.append(line)
    if others := ordered[len(kept) :]:
        speed = sum(one["steps_per_second"] or 0.0 for one in others)
        lines.append(Text(f"and {len(others)} more{f', {speed:,.0f} steps/s' if speed else ''}", "dim"))
    return lines


class TableColumn(NamedTuple):
    heading: str
    cells: list[str]
    right: bool = True

    @property
    def width(self) -> int:
        return max(len(self.heading), *(len(text) for text in self.cells), 0)

    def cell(self, text: str) -> str:
        return text.rjust(self.width) if self.right else text.ljust(self.width)


def state_of(process: Mapping[str, Any]) -> str:
    silent = process.get("silent_seconds")
    return f"silent {silent:.0f} s" if process["state"] == "silent" and silent is not None else str(process["state"])


def style_of(state: str) -> str:
    return "red" if state in BAD else STATES.get(state, "yellow")


def fitted(line: Text, form: Form) -> Text:
    """The line in the letters that the terminal has, cut to its width."""
    if not form.unicode:
        letters = line.plain.translate(ASCII).encode("ascii", "replace").decode()  # as many as before, so that styles fit
        line = Text(letters, line.style, spans=line.spans)
    if line.cell_len > form.width:
        line.truncate(max(form.width - 1, 0))
        line.append("…" if form.unicode else "~")
    line.truncate(form.width)
    return line


def rate_text(value: float | None, unit: str) -> str:
    """A rate in at most five characters: 9.6, 163, 1,630, 16.3k, 1.6M."""
    if value is None:
        return ""
    for least, divisor, letter in ((1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= least:
            return f"{value / divisor:.1f}{letter}{unit}"
    return f"{value:,.0f}{unit}" if value >= 100 else f"{value:.1f}{unit}"


def since(status: Mapping[str, Any], now: float, word: str = "") -> str:
    """How long a run has been in its state, after a space: `word` and a duration, or how long ago it ended; empty if unknown.

    `now` is in seconds since 1970.
    """
    if status["state"] in (*OVER, "dead") and status.get("time"):
        return f" {duration(max(now - status['time'], 0.0))} ago"
    if status.get("paused_since"):
        return f" {word}{duration(max(now - status['paused_since'], 0.0))}"
    seconds = status.get("uptime_seconds")
    return "" if seconds is None else f" {word}{duration(seconds)}"


def inference_lines(status: Mapping[str, Any]) -> Iterator[str]:
    """A line about the inference process of this machine, where there is one."""
    found = status.get("inference") or {}
    if found.get("rows_per_second") is not None:
        yield f"inference {found['rows_per_second']:,.0f} rows/s · {cell(found.get('rows_per_pass'), '{:.1f}')} rows a pass"


def cell(value: Any, form: str, none: str = "-") -> str:
    """The value in this format; `none` if there is none."""
    return none if value is None else form.format(value)
