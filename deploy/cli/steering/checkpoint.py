"""`headrace checkpoint`: writes a checkpoint now."""

from __future__ import annotations

import argparse

from deploy.cli.steering.common import add as add
from deploy.cli.steering.common import carry_out

DESCRIPTION = """\
Write a checkpoint now, between two updates, and wait until it is on disk. It works while the run is paused, too.

Checkpoints are written every learner.checkpoint_epochs epochs, after learner.checkpoint_seconds at the latest, and when the run
stops; this one is treated in the same way.
"""


def run(parsed: argparse.Namespace) -> int:
    return carry_out(parsed, "checkpoint")
