"""`headrace top`: shows the status live."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from deploy import runs
from deploy.cli.common import DONE, add_run
from deploy.reporting import status


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    add_run(target)


def run(parsed: argparse.Namespace) -> int:
    folder = runs.chosen(parsed)
    status.watch(lambda: status.current_status(folder), lambda: not runs.is_up(folder))
    return DONE
