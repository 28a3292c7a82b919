"""`headrace top`: shows a run on the terminal, live."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from deploy import runs
from deploy.cli.common import DONE, add_run

DESCRIPTION = """\
Show a run live: what limits it and what to do, the flow of experience with its rates, the return, trouble and every process.
q or Ctrl-C leaves; the run goes on. Where the output is no terminal it is shown once.
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    add_run(target)


def run(parsed: argparse.Namespace) -> int:
    # Imported here: `headrace top --help` needs none of it.
    from rich.console import Console

    from deploy.recorded.run import RecordedRun
    from deploy.views.terminal.watch import view, watch

    folder = runs.chosen(parsed)
    recorded = RecordedRun(folder)
    watch(lambda: view(recorded), lambda: not runs.is_up(folder), Console(highlight=False))
    return DONE
