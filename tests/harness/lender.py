"""An engine that starts nothing: what it is asked for is in the file `asked` of the run's folder."""

from __future__ import annotations

from typing import Any

from deploy.config.run import RunConfig
from deploy.engines.base import EngineContext
from transport.run_dir import RunDir


class Lender:
    """Writes a line for each number of places, and one for the end."""

    def __init__(self, run: RunDir, config: RunConfig, context: EngineContext) -> None:
        self._file = run.path / "asked"

    @classmethod
    def prepare(cls, config: RunConfig) -> dict[str, Any]:
        return {}

    def want(self, places: int) -> None:
        self._write(f"{places} places")

    def turn(self) -> None: ...

    def close(self) -> None:
        self._write("the end")

    def _write(self, line: str) -> None:
        with self._file.open("a") as file:
            file.write(line + "\n")
