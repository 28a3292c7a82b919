"""Two results of `headrace bench device`, operation by operation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.common.report import figure
from transport.text import plain

SECTIONS = {
    "ms": "Whole updates: all operations of one, by network",
    "µs": "Operations: each in one update of every network",
    "TFLOP/s": "Products of square matrices",
    "GB/s": "Memory",
}
VERDICTS = {"falls back": "falls back to the CPU", "fails": "fails", "differs": "differs from the CPU's"}
UNKNOWN = "-"
HEADS = ("", "A", "B", "A / B", "marks")
ABOUT = "A / B: how many times as fast B is; below 1 it is slower. -: not known, or not measured."


class CompareError(ValueError):
    """A file that cannot be compared; the message names it in one line."""


class Figure(msgspec.Struct):
    """A result of the benchmark."""

    case: str
    metric: str
    unit: str
    value: float


class Machine(msgspec.Struct):
    cpu: str = ""
    gpu: str | None = None
    torch: str = ""


class Listed(msgspec.Struct):
    """An operation that falls back, fails or differs."""

    name: str
    reason: str = ""


class Document(msgspec.Struct):
    """A result of `headrace bench device --json`, as far as it is read here."""

    benchmark: str
    machine: Machine
    results: list[Figure]
    notes: list[str] = []
    operations: dict[str, list[Listed]] = {}
    items: int | None = None

    @property
    def name(self) -> str:
        return plain(self.machine.gpu or self.machine.cpu or "an unnamed processor")

    def measured(self) -> dict[tuple[str, str], Figure]:
        """The figures of the device, without those of the processor beside it."""
        return {
            (each.case, each.metric): each
            for each in self.results
            if each.metric not in ("CPU", "CPU float32") and each.value > 0
        }

    def marks(self, case: str) -> list[str]:
        """The verdicts that are not "equal" on an operation."""
        found = {verdict: [each.name.removeprefix("aten::") for each in listed] for verdict, listed in self.operations.items()}
        return [words for verdict, words in VERDICTS.items() if case in found.get(verdict, [])]


class Row(NamedTuple):
    """An operation on both sides; None where a side has no figure. `ratio`: how many times as fast B is."""

    section: str
    name: str
    unit: str
    a: float | None
    b: float | None
    ratio: float | None
    marks: list[str]


def read(path: Path) -> Document:
    """Raises CompareError."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise CompareError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CompareError(f"{path} is not JSON: write it with `headrace bench device --json > FILE`") from error
    found = document.get("benchmark") if isinstance(document, dict) else None
    if found != "device":
        kind = f"of `headrace bench {plain(str(found))}`" if isinstance(found, str) else "of no benchmark"
        raise CompareError(f"{path} is a result {kind}: --compare needs two of `headrace bench device --json`")
    try:
        return msgspec.convert(document, Document)
    except (msgspec.ValidationError, RecursionError) as error:
        raise CompareError(f"{path} is not as `headrace bench device --json` writes it: {plain(str(error))}") from error


def compare(a: Document, b: Document) -> list[Row]:
    """Every case that either side has, section by section. Times of updates of different sizes get no ratio."""
    sides = {"A": a, "B": b}
    ours, theirs = a.measured(), b.measured()
    rows = []
    for key in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(key), theirs.get(key)
        known = one or other
        assert known is not None
        ratio = None
        if one and other and (known.unit not in ("ms", "µs") or not _other_work(a, b)):
            ratio = one.value / other.value if known.unit in ("ms", "µs") else other.value / one.value
        marks = [f"{letter}: {words}" for letter, side in sides.items() for words in side.marks(known.case)]
        if not (one and other):
            marks.append("only in A" if one else "only in B")
        name = known.case.removeprefix("all of ") if known.metric == "device" else f"{known.case}, {known.metric}"
        rows.append(Row(known.unit, name, known.unit, one and one.value, other and other.value, ratio, marks))
    return sorted(rows, key=lambda row: list(SECTIONS).index(row.section))


def _other_work(a: Document, b: Document) -> bool:
    return a.items is not None and b.items is not None and a.items != b.items


def about(a: Document, b: Document) -> list[str]:
    """The lines above the tables: the sides, how to read them, what falls back, fails or differs."""
    lines = [f"{letter}: {side.name}, torch {plain(side.machine.torch)}" for letter, side in (("A", a), ("B", b))]
    lines.append(ABOUT)
    if _other_work(a, b):
        again = f"measure one again with --batch-size {max(a.items or 0, b.items or 0)}"
        lines.append(f"warning: A's updates have {a.items} items, B's {b.items}, so times of operations get no ratio; {again}")
    for letter, side in (("A", a), ("B", b)):
        for verdict, words in VERDICTS.items():
            names = [f"{plain(each.name)} ({plain(each.reason)})" for each in side.operations.get(verdict, [])]
            lines.append(f"{letter}: {words}: {'; '.join(names) or 'none'}")
    return lines


def side_by_side(files: Sequence[Path], as_json: bool) -> str:
    """Both results as a table, or as JSON. Raises CompareError."""
    if len(files) != 2:
        raise CompareError(f"--compare needs two files, A.json B.json, not {len(files)}")
    a, b = map(read, files)
    rows = compare(a, b)
    if as_json:
        found: dict[str, Any] = {"benchmark": "device side by side", "a": a.name, "b": b.name, "about": about(a, b)}
        return json.dumps(found | {"rows": [row._asdict() for row in rows]}, indent=2)
    return "\n".join([f"{a.name} beside {b.name}", "", *about(a, b), *_tables(rows)])


def _tables(rows: Sequence[Row]) -> list[str]:
    lines: list[str] = []
    for section, title in SECTIONS.items():
        cells = [HEADS, *(_cells(row) for row in rows if row.section == section)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        if len(cells) > 1:
            lines += ["", title]
            lines += [
                "  ".join(
                    [
                        f"{row[0]:<{widths[0]}}",
                        *(f"{cell:>{width}}" for cell, width in zip(row[1:4], widths[1:4], strict=True)),
                        row[4],
                    ]
                ).rstrip()
                for row in cells
            ]
    return lines


def _cells(row: Row) -> tuple[str, ...]:
    values = [UNKNOWN if value is None else f"{figure(value)} {row.unit}" for value in (row.a, row.b)]
    return plain(row.name), *values, UNKNOWN if row.ratio is None else figure(row.ratio), "; ".join(row.marks)
