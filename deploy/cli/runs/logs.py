"""`headrace logs`: prints the merged log, or that of one process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from deploy import runs
from deploy.cli.common import DONE
from deploy.config.values import COUNT
from deploy.errors import ConfigError
from deploy.reporting import logs
from transport.names import nearest


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument(
        "process", nargs="?", metavar="PROCESS", help="replay, learner, actor-0, evaluator, supervisor, … (default: all, merged)"
    )
    target.add_argument(
        "--run",
        dest="run_flag",
        metavar="NAME",
        help="name or folder of a run (default: the run that is up, or the most recent one)",
    )
    target.add_argument("-f", "--follow", action="store_true", help="go on printing new lines until the run is down or Ctrl-C")
    target.add_argument(
        "-n",
        "--lines",
        type=COUNT,
        default=40,
        metavar="N",
        help="number of lines to begin with, from the end of the log (default: 40)",
    )


def run(parsed: argparse.Namespace) -> int:
    if parsed.lines < 0:
        raise ConfigError(f"--lines: expected a number of at least 0, got {parsed.lines}")
    folder = runs.chosen(parsed)
    path = folder.log(parsed.process or logs.MERGED)
    if not path.is_file():
        if parsed.process in (run.name for run in runs.all_runs()):
            raise ConfigError(f"{parsed.process} is a run: `headrace logs --run {parsed.process}` prints its log")
        known = [file.stem for file in (folder.path / "logs").glob("*.log") if file.stem != logs.MERGED]
        if parsed.process is None or not known:
            raise ConfigError(f"run {folder.name} has no logs yet")
        raise ConfigError(f"run {folder.name} has no log of {parsed.process}; {nearest(parsed.process, known)}")
    logs.show(path, min(parsed.lines, sys.maxsize), parsed.follow, lambda: not runs.is_up(folder))
    return DONE
