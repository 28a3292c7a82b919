"""A run's figures as files: metrics/progress.csv, a table for spreadsheets, and metrics/run.jsonl, for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from deploy.reporting.base import Point
from transport.files.documents import open_file
from transport.files.writing import append, replace

FIRST = ("steps", "time")


class FileConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of both."""

    bytes: Annotated[int, Meta(ge=10_000, description="the file is set aside at this size")] = 20_000_000
    kept: Annotated[int, Meta(ge=1, description="files set aside that are kept")] = 1


class JsonLines:
    """{"steps": …, "time": …, tag: value, …} in each line."""

    Config: ClassVar[type[Struct]] = FileConfig

    def __init__(self, run: Path, config: FileConfig) -> None:
        self._path, self._config = run / "metrics" / "run.jsonl", config

    def write(self, record: Point) -> None:
        """Appends the point. On a full disk it is lost."""
        line = json.dumps({"steps": record.steps, "time": record.time, **record.values}) + "\n"
        with suppress(OSError):
            append(self._path, line.encode(), self._config.bytes, self._config.kept)

    def close(self) -> None:
        pass


class CsvTable:
    """A row for each point; the cell of a tag that a point lacks is empty. A new tag becomes the last column. The file is then
    rewritten, which happens a few times at the beginning of a run."""

    Config: ClassVar[type[Struct]] = FileConfig

    def __init__(self, run: Path, config: FileConfig) -> None:
        self._path, self._config = run / "metrics" / "progress.csv", config
        self._columns = _read(self._path)[0]  # those of a resumed run

    def write(self, record: Point) -> None:
        """Appends the point. On a full disk it is lost."""
        values = dict(zip(FIRST, (record.steps, record.time), strict=True)) | dict(record.values)
        with suppress(OSError):
            if values.keys() - set(self._columns) or not self._path.exists():
                self._widen([*self._columns, *(name for name in values if name not in self._columns)])
            line = io.StringIO()
            csv.writer(line).writerow([values.get(name, "") for name in self._columns])
            append(self._path, line.getvalue().encode(), self._config.bytes, self._config.kept)

    def close(self) -> None:
        pass

    def _widen(self, columns: list[str]) -> None:
        """Writes the file with these columns, and its rows so far. Raises OSError."""
        rows = _read(self._path)[1]
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        with temporary.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(_padded([columns, *rows], len(columns)))
        replace(temporary, self._path)
        self._columns = columns


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    """The columns and the rows of a file; none where there is no file."""
    try:
        with io.TextIOWrapper(open_file(path), "utf-8", newline="") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error):
        lines = []
    return (lines[0], lines[1:]) if lines else ([], [])


def _padded(rows: Iterable[Sequence[str]], width: int) -> Iterable[list[str]]:
    return ([*row, *[""] * (width - len(row))] for row in rows)
