"""Stand-ins: `python -m tests.harness.stub RUN_DIR NAME HOW` for a process of a run, `Lender` for an engine."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transport.lifetime import Lifetime
from transport.run_dir import RunDir
from transport.text import say

if TYPE_CHECKING:  # a stand-in of a process needs none of it
    from deploy.config.run import RunConfig
    from deploy.engines.base import EngineContext

LATE_SECONDS = 3.0  # before the first step of a replay that is `late`


class Lender:
    """Starts nothing. The file `asked` of the run's folder gets a line for each number of places, and one for the end."""

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


def main() -> int:
    run_dir, name, how = RunDir(Path(sys.argv[1])), sys.argv[2], sys.argv[3]
    if how == "refuses":
        say(f"{name}: the capacity is too small")
        return 2
    if how == "crashes":
        raise RuntimeError("out of order")
    life = Lifetime(name, run_dir, lambda record: f"{record.get('steps', 0):.0f} steps")
    began = time.monotonic()
    if name == "replay":
        life.steps = lambda: int(life.metrics.value("steps"))
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    life.ready()
    while how == "deaf" or not life.stopping:
        time.sleep(0.02)
        if how != "late" or time.monotonic() > began + LATE_SECONDS:
            life.metrics.count("steps")
        if name == "evaluator":
            life.metrics.gauge("return_mean", life.metrics.value("steps"))
        life.beat()
    life.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
