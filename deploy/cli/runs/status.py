"""`headrace status`: shows what each process of a run does."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from deploy import runs
from deploy.cli.common import DONE, add_run
from deploy.recorded.status import current_status
from deploy.views.terminal.summary import show


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    add_run(target)
    target.add_argument("--json", action="store_true", help="print JSON, for programs")


def run(parsed: argparse.Namespace) -> int:
    found = current_status(runs.chosen(parsed))
    if parsed.json:
        print(json.dumps(found))
    else:
        show(found)
    return DONE
