"""Two results of `headrace bench device`, operation by operation."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.common.report import figure
from benchmarks.device.peak import Peak, peak, share
from transport.text import plain

SECTIONS = {
    "updates": "Whole updates: all operations of one, by network",
    "operations": "Operations: each in one update of every network",
    "matrices": "Products of square matrices",
    "memory": "Memory",
}
VERDICTS = {"falls back": "falls back to the CPU", "fails": "fails", "differs": "differs from the CPU's"}
UNKNOWN = "-"
MATRIX = re.compile(r"matrix product ([\d,]+)")
ABOUT = (
    "A / B: how many times as fast B is; below 1 it is slower.",
    "Share of peak: of an operation, the least time that its arithmetic or its bytes need at the card's peak, over the time "
    "that it takes; above 100 % its data come from a cache. Of a copy within the memory, its rate over the memory's peak.",
    f"{UNKNOWN}: not known, or not measured.",
)


class CompareError(ValueError):
    """A file that cannot be compared; the message names it in one line."""


class Figure(msgspec.Struct):
    """Of the benchmark's results."""

    case: str
    metric: str
    unit: str
    value: float


class Machine(msgspec.Struct):
    """What it was measured on."""

    cpu: str = ""
    cores: int | None = None
    gpu: str | None = None
    torch: str = ""


class Listed(msgspec.Struct):
    """An operation that falls back, fails or differs."""

    name: str
    reason: str = ""


class Done(msgspec.Struct):
    """The work of an operation."""

    flops: dict[str, float] = {}
    bytes: float = 0.0


class Document(msgspec.Struct):
    """What `headrace bench device --json` writes, as far as it is read here. Older files lack work, items and device."""

    benchmark: str
    machine: Machine
    results: list[Figure]
    notes: list[str] = []
    operations: dict[str, list[Listed]] | None = None
    work: dict[str, Done] = {}
    items: int | None = None
    device: str | None = None


@dataclass
class Side:
    """One machine's result."""

    name: str
    notes: list[str]
    of_peak: Peak | None
    measured: dict[tuple[str, str], Figure]
    listed: dict[str, list[Listed]] | None  # by verdict; None: operations were not measured
    work: dict[str, Done]
    items: int | None

    @property
    def peak_words(self) -> str:
        """What its peak is, and where it comes from."""
        if self.of_peak is None:
            return f"the peak of {self.name} is not known here, so its share is {UNKNOWN}"
        rates = ", ".join(f"{kind} {figure(rate)}" for kind, rate in self.of_peak.tflops.items())
        return f"peak: {rates} TFLOP/s; memory {figure(self.of_peak.gigabytes)} GB/s ({self.of_peak.source})"

    def verdicts(self, case: str) -> list[str]:
        """What the lists say of an operation."""
        return [words for verdict, words in VERDICTS.items() if case in self.names(verdict)]

    def names(self, verdict: str) -> list[str]:
        return [each.name.removeprefix("aten::") for each in (self.listed or {}).get(verdict, [])]

    def share_of(self, case: str, figure_: Figure | None) -> float | None:
        """Of the peak."""
        if figure_ is None or self.of_peak is None:
            return None
        if figure_.unit == "GB/s":
            return figure_.value / self.of_peak.gigabytes if figure_.metric == "copy" else None
        if figure_.unit == "TFLOP/s":
            rate = self.of_peak.tflops.get(figure_.metric)
            return figure_.value / rate if rate else None
        done = self.work.get(case)
        return share(seconds(figure_), done.flops, done.bytes, self.of_peak) if done else None


@dataclass
class Row:
    """An operation on both sides; None where a side has no figure."""

    section: str
    name: str
    unit: str
    a: float | None
    b: float | None
    ratio: float | None  # how many times as fast B is
    share_a: float | None
    share_b: float | None
    marks: list[str] = field(default_factory=list)


@dataclass
class Comparison:
    """Both sides, and every row."""

    a: Side
    b: Side
    rows: list[Row]
    warnings: list[str]

    @property
    def title(self) -> str:
        return f"{self.a.name} beside {self.b.name}"

    @property
    def about(self) -> list[str]:
        """What the sides are, and how to read the tables."""
        sides = [f"{letter}: {'; '.join([side.name, *side.notes])}" for letter, side in (("A", self.a), ("B", self.b))]
        peaks = [f"{letter}: {side.peak_words}" for letter, side in (("A", self.a), ("B", self.b))]
        return [*sides, *peaks, *ABOUT]

    @property
    def left(self) -> list[str]:
        """What falls back, fails or differs, by side."""
        lines = []
        for letter, side in (("A", self.a), ("B", self.b)):
            if side.listed is None:
                lines.append(f"{letter}: operations were not measured")
                continue
            for verdict, words in VERDICTS.items():
                names = [f"{each.name} ({each.reason})" if each.reason else each.name for each in side.listed.get(verdict, [])]
                lines.append(f"{letter}: {words}: {'; '.join(names) or 'none'}")
        return lines

    def as_json(self) -> dict[str, Any]:
        rows = [vars(row) for row in self.rows]
        sides = {"a": self.a.name, "b": self.b.name, "about": self.about, "warnings": self.warnings, "left to the CPU": self.left}
        return {"benchmark": "device side by side", **sides, "rows": rows}


def read(path: Path) -> Side:
    """The result in a file. Raises CompareError."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise CompareError(f"{path} cannot be read: {error.strerror}") from error
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CompareError(f"{path} is not JSON: write it with `headrace bench device --json > FILE`") from error
    found = document.get("benchmark") if isinstance(document, dict) else None
    if found != "device":
        what = f"of `headrace bench {plain(str(found))}`" if isinstance(found, str) else "of no benchmark"
        raise CompareError(f"{path} is a result {what}: --compare needs two of `headrace bench device --json`")
    try:
        known = msgspec.convert(_cleaned(document), Document)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CompareError(f"{path} is not as `headrace bench device --json` writes it: {plain(str(error))}") from error
    return _side(known)


def _cleaned(value: Any) -> Any:
    """Its text as a terminal may show it."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_cleaned(each) for each in value]
    return {plain(name): _cleaned(each) for name, each in value.items()} if isinstance(value, dict) else value


def _side(document: Document) -> Side:
    machine = document.machine
    on_cpu = machine.gpu is None if document.device is None else document.device == "cpu"
    cores = f", {machine.cores} cores" if machine.cores else ""
    name = f"{machine.cpu or 'an unnamed processor'}{cores}" if on_cpu or machine.gpu is None else machine.gpu
    items = document.items
    if items is None:
        found = (re.search(r"from updates of (\d+) items", note) for note in document.notes)
        items = next((int(match[1]) for match in found if match), None)
    measured = {(each.case, each.metric): each for each in document.results if math.isfinite(each.value) and each.value > 0}
    notes = [*document.notes[:1], *([f"torch {machine.torch}"] if machine.torch else [])]
    of_peak = None if on_cpu else peak(name)
    return Side(name, notes, of_peak, measured, document.operations, document.work, items)


def compare(a: Side, b: Side) -> Comparison:
    """Every case that either side has, in A's order, then what only B has."""
    warnings = []
    other_work = a.items is not None and b.items is not None and a.items != b.items
    if other_work:
        warnings.append(
            f"A's updates have {a.items} items, B's {b.items}: times of operations are of different work and get no ratio; "
            f"measure one again with --batch-size {max(a.items or 0, b.items or 0)}"
        )
    rows = []
    for case, metric in dict.fromkeys([*a.measured, *b.measured]):
        if metric in ("CPU", "CPU float32"):  # the processor beside the device
            continue
        one, other = a.measured.get((case, metric)), b.measured.get((case, metric))
        rows.append(_row(case, one, other, a, b))
    timed = {row.name for row in rows}
    for name in dict.fromkeys(name for side in (a, b) for verdict in VERDICTS for name in side.names(verdict)):
        if name not in timed:  # what fails has no time
            rows.append(Row("operations", name, "", None, None, None, None, None, _marks(name, None, None, a, b)))
    for row in rows:
        if other_work and row.section in ("updates", "operations"):
            row.ratio = None
    rows.sort(key=lambda row: list(SECTIONS).index(row.section))
    return Comparison(a, b, rows, warnings)


def _row(case: str, one: Figure | None, other: Figure | None, a: Side, b: Side) -> Row:
    known = one or other
    assert known is not None
    matrix = MATRIX.fullmatch(case)
    section = "matrices" if matrix else {"GB/s": "memory", "ms": "updates"}.get(known.unit, "operations")
    shares = a.share_of(case, one), b.share_of(case, other)
    name, unit, values = case, known.unit, [each.value if each else None for each in (one, other)]
    if matrix:
        flops = 2 * int(matrix[1].replace(",", "")) ** 3
        name, unit = f"{case}, {known.metric}", "ms"
        values = [None if rate is None else flops / rate / 1e9 for rate in values]
    elif section == "memory":
        name = known.metric
    ratio = None
    if values[0] is not None and values[1] is not None:
        ratio = values[1] / values[0] if section == "memory" else values[0] / values[1]
    marks = _marks(case, one, other, a, b)
    return Row(section, name.removeprefix("all of "), unit, values[0], values[1], ratio, *shares, marks)


def _marks(case: str, one: Figure | None, other: Figure | None, a: Side, b: Side) -> list[str]:
    found = [f"{letter}: {words}" for letter, side in (("A", a), ("B", b)) for words in side.verdicts(case)]
    if (one is None) != (other is None):
        found.append("only in A" if other is None else "only in B")
    return found


def seconds(time: Figure) -> float:
    return time.value * {"ms": 1e-3, "µs": 1e-6}.get(time.unit, 0.0)


def cells(row: Row) -> list[str]:
    """A row as it is shown."""
    values = [UNKNOWN if value is None else f"{figure(value)} {row.unit}" for value in (row.a, row.b)]
    ratio = UNKNOWN if row.ratio is None else figure(row.ratio)
    return [row.name, *values, ratio, _percent(row.share_a), _percent(row.share_b), "; ".join(row.marks)]


def _percent(share_: float | None) -> str:
    return UNKNOWN if share_ is None else f"{100 * share_:{'.1f' if share_ >= 0.01 else '.2g'}} %"


HEADS = ["", "A", "B", "A / B", "A: share of peak", "B: share of peak", "marks"]


def table(comparison: Comparison) -> str:
    """For a terminal."""
    lines = [comparison.title, "", *comparison.about, *(f"warning: {warning}" for warning in comparison.warnings)]
    shown = {name: [cells(row) for row in comparison.rows if row.section == name] for name in SECTIONS}
    columns = zip(HEADS, *(row for rows in shown.values() for row in rows), strict=True)
    widths = [max(map(len, column)) for column in columns]
    for name, rows in shown.items():
        if rows:
            lines += ["", SECTIONS[name], *(_line(row, widths) for row in [HEADS, *rows])]
    return "\n".join([*lines, "", *comparison.left])


def _line(row: list[str], widths: list[int]) -> str:
    first, *numbers, marks = row
    padded = [f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:-1], strict=True)]
    return "  ".join([f"{first:<{widths[0]}}", *padded, marks]).rstrip()
