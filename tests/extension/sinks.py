"""A sink of a package outside, and some that fail."""

from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from deploy.reporting.base import Point


class CsvConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Two columns of a figure."""

    tag: Annotated[str, Meta(min_length=1, description="which figure")] = "time/fps"
    file: str = "figures.csv"


class Csv:
    Config = CsvConfig

    def __init__(self, run: Path, config: CsvConfig) -> None:
        self._path, self._tag = run / config.file, config.tag

    def write(self, record: Point) -> None:
        if self._tag in record.values:
            with self._path.open("a") as file:
                file.write(f"{record.steps},{record.values[self._tag]}\n")

    def close(self) -> None:
        with self._path.open("a") as file:
            file.write("closed\n")


class Raising:
    def __init__(self, run: Path, config: Any) -> None: ...

    def write(self, record: Point) -> None:
        raise SystemExit("the server\nis gone")

    def close(self) -> None: ...


class Unmakeable:
    def __init__(self, run: Path, config: Any) -> None:
        raise ValueError("no account")
