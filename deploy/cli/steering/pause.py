"""`headrace pause`: lets actors and learner of a run rest."""

from __future__ import annotations

import argparse

from deploy.cli.steering.common import add as add
from deploy.cli.steering.common import carry_out

DESCRIPTION = """\
Let a run rest: actors finish their step, the learner its update; then they wait, and nothing is lost.

All processes stay alive and keep what they hold in memory: `headrace unpause` goes on at once. A checkpoint and an evaluation may
be ordered meanwhile, and the run may be stopped, which saves everything. The time of the pause does not count for --stop-after. A
run that is stopped and resumed is not paused.
"""


def run(parsed: argparse.Namespace) -> int:
    return carry_out(parsed, "pause")
