"""`python -m deploy.cli.trial RUNS CORES up …`: `headrace up …` as a trial of a sweep, whose process starts it.

The run is made in the folder RUNS, on these CORES ("0,1"; empty: all), and ends with the sweep, however that ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from deploy import runs
from deploy.cli.main import main as headrace
from transport.lifetime import PARENT_VARIABLE, die_with_parent


def main() -> int:
    folder, cores, *words = sys.argv[1:]
    die_with_parent()
    os.environ.pop(PARENT_VARIABLE, None)  # this process's own children end with this one
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, map(int, cores.split(",")))
    runs.RUNS = Path(folder)
    return headrace(words)


if __name__ == "__main__":
    sys.exit(main())
