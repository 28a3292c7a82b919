"""`headrace list`: a line for each run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from deploy import runs
from deploy.cli.common import DONE
from deploy.errors import ConfigError
from deploy.recorded.status import current_status
from transport.text import plain


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    pass


def run(parsed: argparse.Namespace) -> int:
    for folder in runs.all_runs():
        try:
            found = current_status(folder)
        except ConfigError as error:
            print(plain(f"{folder.name:<30} unreadable: {error}"))
            continue
        steps = found.get("steps") or 0
        line = f"{folder.name:<30} {found['state']:<9} {found['env']:<20} {found['algorithm']:<6} {steps:>14,} steps"
        print(plain(line))  # a run's folder may be from elsewhere
    return DONE
