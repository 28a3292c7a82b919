"""A run's figures as lines of JSON, for programs: metrics/run.jsonl."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from deploy.reporting.base import Point
from transport.files.writing import append


class JsonLinesConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of JsonLines."""

    bytes: Annotated[int, Meta(ge=10_000, description="the file is set aside at this size")] = 20_000_000
    kept: Annotated[int, Meta(ge=1, description="files set aside that are kept")] = 1


class JsonLines:
    """{"steps": …, "time": …, tag: value, …} in each line."""

    Config: ClassVar[type[Struct]] = JsonLinesConfig

    def __init__(self, run: Path, config: JsonLinesConfig) -> None:
        self._path, self._config = run / "metrics" / "run.jsonl", config

    def write(self, record: Point) -> None:
        """Appends the point. On a full disk it is lost."""
        line = json.dumps({"steps": record.steps, "time": record.time, **record.values}) + "\n"
        with suppress(OSError):
            append(self._path, line.encode(), self._config.bytes, self._config.kept)

    def close(self) -> None:
        pass
