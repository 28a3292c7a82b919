"""`headrace evaluate-now`: begins an evaluation now."""

from __future__ import annotations

import argparse

from deploy.cli.steering.common import add as add
from deploy.cli.steering.common import carry_out

DESCRIPTION = """\
Begin an evaluation of the newest policy now, even if that policy was evaluated before or the run is paused.

It returns when the evaluator has begun. The result is in the log and in `headrace status`.
"""


def run(parsed: argparse.Namespace) -> int:
    return carry_out(parsed, "evaluate")
