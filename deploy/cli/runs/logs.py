"""`headrace logs`: the merged log, or that of one process."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from deploy import runs
from deploy.cli.common import DONE
from deploy.config.errors import ConfigError
from deploy.config.values import COUNT
from deploy.reporting import logs
from transport.names import nearest


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("process", nargs="?", metavar="PROCESS", help="replay, learner, actor-0, …, supervisor; default: all")
    target.add_argument("--run", dest="run_flag", metavar="NAME", help="default: the run that is up, else the latest")
    target.add_argument("-f", "--follow", action="store_true", help="go on printing what is added")
    target.add_argument("-n", "--lines", type=COUNT, default=40, metavar="N", help="lines from the end (default: 40)")


def run(parsed: argparse.Namespace) -> int:
    """Prints the end of a log; with -f until the run is down or Ctrl-C."""
    folder = runs.chosen(parsed)
    path = folder.log(parsed.process or logs.MERGED)
    if not path.is_file():
        known = [file.stem for file in (folder.path / "logs").glob("*.log") if file.stem != logs.MERGED]
        raise ConfigError(
            f"run {folder.name} has no log of {parsed.process or 'anything'}; {nearest(parsed.process or '', known)}"
        )
    logs.show(path, parsed.lines, parsed.follow, lambda: not runs.is_up(folder))
    return DONE
