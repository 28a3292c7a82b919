"""`headrace list`: a line for each run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from deploy import runs
from deploy.cli.common import DONE
from deploy.config.run import ConfigError
from deploy.reporting.status import current_status


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    pass


def run(parsed: argparse.Namespace) -> int:
    for folder in runs.all_runs():
        try:
            found = current_status(folder)
        except ConfigError as error:
            print(f"{folder.name:<30} unreadable: {error}")
            continue
        steps = found.get("steps") or 0
        print(f"{folder.name:<30} {found['state']:<9} {found['env']:<20} {found['algorithm']:<6} {steps:>14,} steps")
    return DONE
