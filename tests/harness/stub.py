"""Stands in for a role: `python -m tests.harness.stub RUN_DIR NAME HOW` lives as a process of a run, or misbehaves."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from transport.lifetime import Lifetime
from transport.run_dir import RunDir
from transport.text import say

LATE_SECONDS = 3.0  # before the first step of a replay that is `late`


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
    if how == "parent":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (run_dir.path / "grandchild").write_text(str(child.pid))
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
