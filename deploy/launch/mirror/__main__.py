"""`python -m deploy.launch.mirror RUN_DIR TARGET`: the process that keeps the mirror of a run. No other process waits for it,
so it does not slow the run down."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from deploy.launch.mirror.copier import Copier, MirrorError
from transport.lifetime import Lifetime
from transport.metrics import Record
from transport.run_dir import RunDir
from transport.system import lower_priority
from transport.text import say

TURN_SECONDS, RETRY_SECONDS, IDLE_SECONDS = 5.0, 30.0, 0.2

LEAST_BYTES_PER_SECOND = 10e3


def describe(record: Record) -> str:
    """The throughput line; empty while there is no more to copy than the status of the run."""
    if record.get("copied_bytes_per_second", 0) < LEAST_BYTES_PER_SECOND and not record.get("behind_bytes"):
        return ""
    behind = f" · {record['behind_bytes'] / 1e6:,.1f} MB behind" if record.get("behind_bytes") else ""
    return f"copied {record.get('copied_bytes', 0) / 1e6:,.1f} MB{behind}"


class MirrorProcess:
    """Its passes, and what it says of them."""

    def __init__(self, run: RunDir, target: Path, lifetime: Lifetime) -> None:
        """Raises MirrorError."""
        self._copier, self._lifetime = Copier(run, target, self._beat), lifetime
        self._failing = ""

    def turn(self, sealed: bool = False) -> bool:
        """One pass; False where it failed. A failure is said once, and so is its end."""
        try:
            copied = self._copier.turn(sealed)
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""  # an error of writing names no file
            reason = f"{error.strerror}{where}" if error.strerror else str(error)
            if reason != self._failing:
                say(f"nothing can be copied ({reason}); training continues, and copying is tried again")
            self._failing = reason
            self._lifetime.metrics.count("failed_copies")
            return False
        if self._failing:
            say("copying goes on")
        self._failing = ""
        self._lifetime.metrics.count("copied_bytes", copied)
        return True

    def _beat(self) -> None:
        self._lifetime.metrics.gauge("behind_bytes", self._copier.behind_bytes)
        self._lifetime.metrics.gauge("save_bytes", self._copier.behind_bytes)  # the supervisor waits for so much when it stops
        self._lifetime.beat()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.launch.mirror", description="Keeps the mirror of a run.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    lifetime = Lifetime("mirror", RunDir(arguments.run_dir), describe)
    lower_priority()
    try:
        process = MirrorProcess(RunDir(arguments.run_dir), arguments.target, lifetime)
    except MirrorError as error:
        say(f"mirror: {error}")
        return 2
    say(f"keeps a copy of the run in {arguments.target}")
    lifetime.ready()
    due = 0.0
    while not lifetime.stopping:
        if time.monotonic() >= due:
            due = (TURN_SECONDS if process.turn() else RETRY_SECONDS) + time.monotonic()
        lifetime.sleep(IDLE_SECONDS, resting=lifetime.paused)  # it has nothing new to copy then
    if process.turn(sealed=True):
        say(f"{arguments.target} is complete")
    else:
        say(f"{arguments.target} is not complete: what came last is in {arguments.run_dir} only")
    lifetime.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
