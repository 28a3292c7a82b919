"""`headrace list`: a line for each run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from deploy import runs
from deploy.cli.common import DONE, current_status


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    pass


def run(parsed: argparse.Namespace) -> int:
    for folder in runs.all_runs():
        found = current_status(folder)
        steps = found.get("steps") or 0
        print(f"{folder.name:<30} {found['state']:<9} {found['env']:<20} {found['algorithm']:<6} {steps:>14,} steps")
    return DONE
