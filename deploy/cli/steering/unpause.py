"""`headrace unpause`: lets a paused run go on."""

from __future__ import annotations

import argparse

from deploy.cli.steering.common import add as add
from deploy.cli.steering.common import carry_out

DESCRIPTION = """\
Let a run that `headrace pause` has paused go on where it stopped.
"""


def run(parsed: argparse.Namespace) -> int:
    return carry_out(parsed, "unpause")
